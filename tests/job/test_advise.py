"""Runs the advise job on small texts, from a command line to the recommended order of recipes."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.advise.advice import Advice
from adapt.advise.evidence import Evidence
from adapt.config import Config, CorpusConfig, SourceConfig, TaskConfig
from adapt.job.job_run import carry_out
from adapt.job.measuring_jobs import ADVISE_JOB, advice, advise_stages
from adapt.job.training_jobs import TAPT_JOB as TAPT_JOB
from adapt.job.training_jobs import tapt_stages
from adapt.parse import parse
from adapt.runner import Finished, ensure
from adapt.stage.context import Context
from adapt.support.errors import ConfigError
from adapt.train.capacity import forecast
from tests.samples import sentences, with_labels, write

pytestmark = pytest.mark.heavy


@pytest.fixture
def arguments(tmp_path: Path, tiny_bert: Path) -> list[str]:
    """Returns arguments with a corpus, general text, and a task with a test text that also occurs in train."""
    for seed, name in enumerate(("corpus", "general")):
        write(tmp_path / f"{name}.jsonl", [{"text": text} for text in sentences(80, seed)])
    train = sentences(20, seed=5)
    for name, texts in {"train": train, "dev": sentences(8, seed=6), "test": [*sentences(7, seed=7), train[0]]}.items():
        write(tmp_path / f"{name}.jsonl", with_labels(texts))
    return [
        f"--model.path={tiny_bert}",
        f"--corpus.paths={tmp_path / 'corpus.jsonl'}",
        f"--evaluation.general_paths={tmp_path / 'general.jsonl'}",
        *(f"--task.{split}={tmp_path / split}.jsonl" for split in ("train", "dev", "test")),
        "--training.sequence_length=32",
        "--training.global_batch_size=4",
        "--evaluation.sequence_length=32",
        f"--storage.root={tmp_path / 'runs'}",
    ]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets fixed device speeds, because measuring them takes seconds."""
    monkeypatch.setattr(forecast, "expected_rate", lambda *_: (1e9, "as told"))


@pytest.fixture
def config(arguments: list[str], told: None) -> Config:
    return parse(arguments, "jobs/advise.py", ADVISE_JOB.kind)


def looked(config: Config) -> Finished[Evidence]:
    context = Context.of(config)
    return ensure(advise_stages(context), context.store)


def advised(config: Config) -> Advice:
    return advice(Context.of(config), looked(config), [])


def test_the_whole_job(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    carry_out(ADVISE_JOB, [*arguments, "--debug"])
    out, shown = capsys.readouterr()
    result = json.loads(out.splitlines()[-1])
    metrics = result["metrics"]
    assert result["stage"] == "advise"
    assert metrics["evidence"]["corpus"]["documents"] == 80
    assert metrics["evidence"]["tasks"][0]["leaked"] == 1
    assert {recipe["name"] for recipe in metrics["recipes"]} == {"fine-tuning", "TAPT", "DAPT", "DAPT+TAPT"}
    assert all(recipe["cost"]["device_hours"] > 0 for recipe in metrics["recipes"])
    rules = {remark["rule"] for remark in metrics["remarks"]}
    assert {"tapt_gains", "corpus_is_small", "texts_leak", "task_is_small", "dapt_forgets"} <= rules
    first = metrics["recipes"][0]
    assert first["command"].startswith("dontstop ")
    assert "--debug" not in first["command"]
    assert f"Run first ({first['name']}): {first['command']}" in shown
    assert "1 of 8" in shown
    assert "DSP table 5" in shown


def test_finished_evidence_is_not_collected_again(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def evidence(*more: str) -> tuple[str, str]:
        return looked(parse([*arguments, *more], "jobs/advise.py", ADVISE_JOB.kind)).record.key, capsys.readouterr().err

    key, _ = evidence()
    again, shown = evidence("--advice.budget_device_hours=1", "--training.max_steps=3")
    assert (again, shown) == (key, "")
    other, shown = evidence("--vocabulary.min_count=10")
    assert other != key
    assert "task:" not in shown


def test_a_corpus_without_tasks(config: Config) -> None:
    found = advised(replace(config, task=TaskConfig(), evaluation=replace(config.evaluation, general_paths=[])))
    assert [recipe.name for recipe in found.recipes] == ["DAPT"]
    assert [remark.rule for remark in found.remarks] == ["detour_may_help", "optimizer_differs"]
    assert not any(remark.speaks_for or remark.speaks_against for remark in found.remarks)


def test_a_task_without_a_corpus(config: Config) -> None:
    found = advised(replace(config, corpus=CorpusConfig(), evaluation=replace(config.evaluation, general_paths=[])))
    assert [recipe.name for recipe in found.recipes] == ["TAPT", "fine-tuning"]


def test_sources_and_a_pool(config: Config) -> None:
    paths = config.corpus.paths
    sources = [SourceConfig(name="one", paths=paths), SourceConfig(name="two", paths=paths)]
    config = replace(config, corpus=CorpusConfig(sources=sources), tapt=replace(config.tapt, pool_paths=paths))
    finished = looked(config)
    evidence = finished.result
    assert evidence.corpus
    assert evidence.pool
    assert (evidence.corpus.documents, evidence.pool.documents) == (160, 80)
    assert "pool_is_curated" in {remark.rule for remark in advice(Context.of(config), finished, []).remarks}


def test_advice_on_a_selection_from_a_pool(arguments: list[str], told: None, tmp_path: Path) -> None:
    """Checks that jobs/tapt.py accepts the recommended command."""
    pool = write(tmp_path / "candidates.jsonl", [{"text": text} for text in sentences(900, 9)])
    given = [*arguments[:1], *arguments[2:], f"--select.pool_paths={pool}"]
    config = parse(given, "jobs/advise.py", ADVISE_JOB.kind)
    finished = looked(config)
    evidence = finished.result
    assert evidence.candidates
    assert evidence.candidates.documents == 900
    found = advice(Context.of(config), finished, given)
    assert "selection_gains" in {remark.rule for remark in found.remarks}
    (command,) = (recipe.command for recipe in found.recipes if recipe.name == "TAPT on a selection")
    parsed = parse(shlex.split(command)[2:], "jobs/tapt.py", TAPT_JOB.kind)
    tokens = evidence.candidates.tokens
    assert tokens
    # The budget is half a pass over the pool. The selection is read ten times, so its size is a tenth of the budget.
    assert parsed.select.tokens == round(45 / 900 * tokens)
    assert tapt_stages(Context.of(parsed)).training
    (command,) = (recipe.command for recipe in found.recipes if recipe.name == "TAPT")
    assert not parse(shlex.split(command)[2:], "jobs/tapt.py", TAPT_JOB.kind).select.pool_paths


def test_advice_needs_a_corpus_or_a_task(config: Config) -> None:
    with pytest.raises(ConfigError, match="nothing to advise on"):
        advise_stages(Context.of(replace(config, corpus=CorpusConfig(), task=TaskConfig())))
