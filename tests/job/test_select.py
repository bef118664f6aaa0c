"""Tests the stages of the select job and of jobs that train on a selection, and configurations that they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import build_chain
from adapt.config import Config, CorpusConfig, SelectConfig, TaptConfig
from adapt.job import JOBS
from adapt.job.selection_job import SELECT_JOB, select_stages
from adapt.job.training_jobs import SELECTION, dapt_stages, tapt_stages
from adapt.parse import parse
from adapt.stage.context import Context
from adapt.stage.prepare_text import PrepareTexts
from adapt.stage.select_documents import Select
from adapt.stage.text_sources import Files, TaskTexts
from adapt.support.errors import ConfigError, ModelError
from tests.job.worlds import keyed_model, splits, task_world

POOL: dict[str, Any] = {"pool_paths": "data/pool.jsonl"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return replace(task_world(tmp_path, monkeypatch), select=SelectConfig(**POOL, kind="dsir", documents=2))


def chosen(config: Config, **changes: Any) -> Select:
    return select_stages(Context.of(replace(config, select=replace(config.select, **changes)))).chosen


def selected(text: Any) -> Select:
    assert isinstance(text, PrepareTexts)
    assert isinstance(text.texts, Select)
    return text.texts


def test_a_random_selection_accompanies_every_other_selection(config: Config) -> None:
    judged = select_stages(Context.of(config))
    control = judged.control
    assert control
    assert (judged.chosen.way, control.way) == ("dsir", "random")
    assert control.like == judged.chosen
    assert (control.pool, control.target, control.unseen) == (
        judged.chosen.pool,
        judged.chosen.target,
        judged.chosen.unseen,
    )
    assert control.what()["budget"] == {"per_example": None, "documents": None, "tokens": None}
    assert select_stages(Context.of(replace(config, select=SelectConfig(**POOL, documents=2)))).control is None


def test_the_target_is_the_train_text_without_dev_and_test_text(config: Config) -> None:
    target, unseen = chosen(config).target.text, chosen(config).unseen
    assert isinstance(target, TaskTexts)
    assert [each.split for each in target.wanted] == ["train"]
    assert unseen
    assert [each.split for each in target.unseen] == [each.split for each in unseen.wanted] == ["dev", "test"]
    other = chosen(config, target_paths="data/more.jsonl")
    assert isinstance(other.target.text, Files)
    assert other.unseen == unseen


def test_a_selection_with_its_own_target_needs_no_task(config: Config) -> None:
    alone = replace(config, task=Config().task)
    assert chosen(alone, target_paths="data/more.jsonl").unseen is None


def test_scoring_models_count_by_their_content(config: Config, tmp_path: Path) -> None:
    one, other = (keyed_model(tmp_path / name) for name in ("one", "other"))
    difference = chosen(config, kind=[{"perplexity": {"reference": str(one)}}])
    assert difference.start
    assert [start.pretrained.model for start in difference.others.values()] == [one]
    assert chosen(config).start is None
    assert chosen(config, kind=[{"perplexity": {"reference": str(other)}}]).key == difference.key
    (other / "model.safetensors").write_text("other weights")
    assert chosen(config, kind=[{"perplexity": {"reference": str(other)}}]).key != difference.key
    assert chosen(config, kind="perplexity").key != difference.key
    (one / "tokenizer.json").write_text("another")
    with pytest.raises(ModelError, match=r"the tokenizer of .* cannot be loaded"):
        chosen(config, kind=[{"perplexity": {"reference": str(one)}}])


def test_tapt_makes_the_same_selection_as_the_job(config: Config) -> None:
    assert selected(tapt_stages(Context.of(config)).training.corpora[SELECTION]) == chosen(config)


def test_dapt_can_train_on_a_selection_instead_of_a_corpus(config: Config) -> None:
    arguments = [
        *("--select.pool_paths=data/pool.jsonl", "--select.documents=2", "--select.target_paths=data/more.jsonl"),
        *(f"--model.path={config.model.path}", f"--storage.root={config.storage.root}"),
        *("--training.sequence_length=64", "--evaluation.sequence_length=64"),
    ]
    given = parse(arguments, "x", JOBS["dapt"].kind)
    export = dapt_stages(Context.of(given))
    (text,) = export.training.corpora.values()
    assert selected(text).way == "random"
    assert text == export.domain
    assert text.what()["corpus"]["heldout_fraction"] == 0.01  # share of the selection that is held out for evaluation


def test_dapt_with_a_corpus_says_that_it_selects_nothing(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    with_corpus = replace(config, corpus=replace(config.corpus, paths="data/more.jsonl"))
    assert "(selection)" not in dapt_stages(Context.of(with_corpus)).training.corpora
    assert "select.pool_paths is not used, because there is a corpus" in capsys.readouterr().err
    dapt_stages(Context.of(replace(with_corpus, select=SelectConfig())))
    assert "select.pool_paths" not in capsys.readouterr().err


# --- chains


def chain(config: Config, folder: Path, **stages: Any) -> Any:
    common = {
        "model.path": config.model.path,
        "storage.root": config.storage.root,
        "select.pool_paths": "data/pool.jsonl",
    }
    common |= {"training.sequence_length": 64, "evaluation.sequence_length": 64}
    file = folder / "chain.yaml"
    file.write_text(yaml.safe_dump({"common": common, "stages": stages}))
    return {goal.name: goal.stage for goal in build_chain(expand_chain(read_chain(str(file)))).goals}


TASK = {"name": "one", **splits()}
CHOSEN = {"job": "select", "task": TASK, "select": {"kind": "dsir", "documents": 2}}
NO_POOL = {"select.pool_paths": []}


def test_stages_of_a_chain_train_on_the_selection_of_another_stage(config: Config, tmp_path: Path) -> None:
    stages = chain(
        config,
        tmp_path,
        dapt={"job": "dapt", "corpus.paths": "data/more.jsonl", **NO_POOL},
        chosen={**CHOSEN, "from": "dapt"},
        tapt={"job": "tapt", "task": TASK, "from": ["dapt", "chosen"], **NO_POOL},
        other={"job": "dapt", "from": "chosen", **NO_POOL},
        random={"job": "select", "task": TASK, "from": "chosen"},
    )
    made = stages["chosen"].chosen
    assert selected(stages["tapt"].training.corpora[SELECTION]) == made
    assert stages["tapt"].training.start.training == stages["dapt"].training
    assert selected(stages["other"].training.corpora["domain"]) == made
    assert stages["other"].training.start.training is None
    assert stages["random"].chosen.like == made
    assert stages["random"].control is None
    assert stages["chosen"].start.training == stages["dapt"].training


@pytest.mark.parametrize(
    ("stage", "what"),
    [
        (
            {"job": "finetune", "task": TASK, "from": "chosen"},
            "chosen, which selects text, but finetune jobs cannot train on text",
        ),
        ({"job": "tapt", "task": TASK, "from": ["chosen", "chosen"]}, "chosen and chosen, which both select text"),
        ({"job": "tapt", "task": TASK, "from": ["dapt", "dapt"]}, "dapt and dapt, which both make a model"),
        ({"job": "tapt", "task": TASK, "from": "chsen"}, "unknown key chsen in stage"),
        ({"job": "tapt", "task": TASK, "from": "chosen"}, "but select.pool_paths is set too"),
        (
            {"job": "dapt", "from": "chosen", "corpus.paths": "data/more.jsonl", **NO_POOL},
            "both a corpus and a selection of documents are configured",
        ),
        ({"job": "dapt", "from": "dapt", **NO_POOL}, "corpus.paths is empty"),
        (
            {**CHOSEN, "from": "chosen"},
            "select.documents is set, and the selection that `from` names gives a budget too",
        ),
    ],
)
def test_wrong_selections_in_a_chain_are_refused(config: Config, tmp_path: Path, stage: Any, what: str) -> None:
    first = {"job": "dapt", "corpus.paths": "data/more.jsonl", **NO_POOL}
    with pytest.raises(ConfigError) as caught:
        chain(config, tmp_path, dapt=first, chosen=CHOSEN, stage=stage)
    assert what in caught.value.what


# --- what is refused

NONE = {"documents": None}


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        (NONE, "no budget is set", "set one of select.per_example"),
        ({"tokens": 5}, "select.documents and select.tokens are set", "set one of"),
        (
            {"per_example": 5, "tokens": 5},
            "select.per_example and select.documents and select.tokens are set",
            "one of",
        ),
        ({"pool_paths": []}, "select.pool_paths is empty", "--select.pool_paths"),
        ({"kind": "dsri"}, "select.kind: there is no 'dsri'", "did you mean dsir?"),
        ({"kind": ["dsir", "randm"]}, "select.kind: there is no 'randm'", "did you mean random?"),
        ({"kind": [{"dsir": {"ngrams": 1}}]}, "unknown key ngrams in dsir", "did you mean ngram?"),
        ({"kind": [{"dsir": {"smoothing": "much"}}]}, "dsir.smoothing takes float, not much", "correct the value"),
    ],
)
def test_wrong_selections_are_refused_before_anything_runs(
    config: Config, changes: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(config, **changes)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_a_selection_without_target_is_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match="the selection has no target"):
        chosen(replace(config, task=Config().task))


def test_either_the_whole_pool_or_a_part_is_used(config: Config) -> None:
    both = replace(config, tapt=TaptConfig(pool_paths="data/pool.jsonl"))
    with pytest.raises(ConfigError, match=r"tapt\.pool_paths and select\.pool_paths are both set"):
        tapt_stages(Context.of(both))


def test_a_budget_without_a_pool_is_refused_in_trainings(config: Config) -> None:
    lost = replace(config, select=SelectConfig(documents=3))
    with pytest.raises(ConfigError, match=r"select\.documents is set, but select\.pool_paths is not"):
        tapt_stages(Context.of(lost))


def test_a_corpus_has_priority_over_a_section_of_other_jobs(config: Config) -> None:
    (text,) = dapt_stages(
        Context.of(replace(config, corpus=CorpusConfig(paths="data/more.jsonl")))
    ).training.corpora.values()
    assert not isinstance(text, PrepareTexts)


def test_the_job_is_parsed_with_its_options(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "select:\n  kind: [{dsir: {ngram: 1}}, classifier]\n  pool_paths: data/pool.jsonl\n  documents: 3\n"
    )
    given = parse(["--config", str(file), "--select.keep=4"], "jobs/select.py", SELECT_JOB.kind)
    assert given.select.kind == [{"dsir": {"ngram": 1}}, "classifier"]
    assert given.select.keep == 4
    one = parse(["--select.pool_paths=a", "--select.kind=dsir", "--dsir.ngram=1"], "jobs/select.py", SELECT_JOB.kind)
    assert (one.select.kind, one.select_options["dsir"]["ngram"]) == ("dsir", 1)
    listed = parse(["--select.kind=[dsir, classifier]"], "jobs/select.py", SELECT_JOB.kind)
    assert listed.select.kind == ["dsir", "classifier"]
