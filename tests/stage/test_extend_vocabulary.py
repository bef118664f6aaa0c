"""Tests of vocabulary extension in jobs and chains: model, tokenizer, keys, later stages, and errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import build_chain
from adapt.config import Config, CorpusConfig, EvaluationConfig, ModelConfig, StorageConfig, TrainingConfig
from adapt.config.job_sections import VocabularyConfig
from adapt.job.job_run import carry_out
from adapt.job.measuring_jobs import VOCABULARY_JOB, change_vocabulary, with_action
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import Done, Finished, ensure
from adapt.stage.context import Context
from adapt.stage.vocabulary_stages import ExtendVocabulary
from adapt.support.errors import AdaptError, ConfigError, DataError, ModelError
from adapt.task.prepare_task import Split
from adapt.vocabulary.vocabulary_results import Extended
from tests.samples import labelled, sentences, write
from tests.show.shown import show_result

WORDS = ("hepatitis", "nephritis", "Hepatomegaly")


def texts(seed: int = 0) -> list[str]:
    return [f"{text} {word} and {word}" for text in sentences(10, seed) for word in WORDS]


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    return Config(
        name="more",
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(
            paths=write(tmp_path / "domain.jsonl", [{"text": text} for text in texts()]), heldout_fraction=0.0
        ),
        vocabulary=VocabularyConfig(action="extend", size=3),
        training=TrainingConfig(sequence_length=64),
        evaluation=EvaluationConfig(sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def asking(config: Config, **fields: Any) -> Config:
    return replace(config, vocabulary=replace(config.vocabulary, **fields))


def key(config: Config) -> str:
    return change_vocabulary(Context.of(config)).key


def test_a_model_and_a_tokenizer_with_the_words(
    config: Config, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "extend",
        f"--model.path={tiny_bert}",
        f"--corpus.paths={config.corpus.paths}",
        "--corpus.heldout_fraction=0",
        "--vocabulary.size=3",
        "--training.sequence_length=64",
        "--evaluation.sequence_length=64",
        f"--storage.root={config.storage.root}",
    ]
    carry_out(VOCABULARY_JOB, with_action(flags))
    out, err = capsys.readouterr()
    line = json.loads(out)
    folder = Path(line["path"])
    model, tokenizer, old = load_model(folder), load_tokenizer(folder), load_tokenizer(tiny_bert)
    size = len(old)
    assert tokenizer.tokenize("Hepatitis, hepatomegaly, nephritis") == [
        *("hepatitis", ",", "hepatomegaly", ",", "nephritis")
    ]
    assert {token: tokenizer.get_vocab()[token] for token in old.get_vocab()} == old.get_vocab()
    assert (len(tokenizer), model.config.vocab_size) == (size + 3, size + 3)
    ids = torch.tensor([old("the model and data")["input_ids"]])
    with torch.no_grad():
        before, after = load_model(tiny_bert)(input_ids=ids).logits, model(input_ids=ids).logits
    assert torch.allclose(after[..., :size], before, atol=1e-6)
    assert line["metrics"]["words"] == 3
    assert line["metrics"]["fertility_after"] < line["metrics"]["fertility_before"]
    listed = json.loads((folder / "words.json").read_text())
    assert [each["id"] for each in listed] == [size, size + 1, size + 2]
    assert {each["word"] for each in listed} == {"hepatitis", "hepatomegaly", "nephritis"}
    assert all("".join(piece.strip("#") for piece in each["pieces"]) == each["word"] for each in listed)
    assert "with 3 words of a domain as new tokens" in (folder / "README.md").read_text()
    assert "hepatitis" in err


def test_the_key_depends_on_what_determines_the_result(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("hepatitis\n")
    listed = asking(config, candidates=str(file))
    keys = [
        key(config),
        key(asking(config, size=2)),
        key(asking(config, size="elbow")),
        key(asking(config, candidates="trained")),
        key(asking(config, init="normal")),
        key(asking(config, min_count=2)),
        key(replace(config, seed=1)),
        key(listed),
    ]
    file.write_text("nephritis\n")
    keys.append(key(listed))
    assert len({*keys}) == len(keys)


def test_impossible_settings_are_refused(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="savd is neither saved, divergence, trained nor a file") as caught:
        key(asking(config, candidates="savd"))
    assert caught.value.fix == "did you mean saved?"
    with pytest.raises(ConfigError, match="compares the corpus with general text"):
        key(asking(config, candidates="divergence"))
    context = Context.of(asking(config, min_count=1000))
    with pytest.raises(DataError, match="no word that occurs at least 1000 times"):
        ensure(change_vocabulary(context), context.store)


def test_later_stages_of_a_chain_use_the_new_tokens(config: Config, tmp_path: Path, tiny_bert: Path) -> None:
    """The new tokens are used in the preparation of a task, and in a training run that follows another training run."""
    splits = {split: write(tmp_path / f"{split}.jsonl", labelled(8, len(split))) for split in ("train", "dev", "test")}
    rows = [{"text": f"{row['text']} nephritis", "label": row["label"]} for row in labelled(8, 1)]
    write(tmp_path / "train.jsonl", rows)
    content = {
        "common": {
            "model.path": str(tiny_bert),
            "storage.root": config.storage.root,
            "training.sequence_length": 64,
            "evaluation.sequence_length": 64,
            "corpus.paths": config.corpus.paths,
        },
        "stages": {
            "more": {"job": "vocabulary", "vocabulary": {"action": "extend", "size": 3, "min_count": 2}},
            "dapt": {"job": "dapt", "from": "more"},
            "again": {"job": "tapt", "from": "dapt", "task": {"name": "toy", **splits}},
            "tuned": {"job": "finetune", "from": "again", "task": {"name": "toy", **splits}, "finetune.seeds": [0]},
            "plain": {"job": "finetune", "task": {"name": "toy", **splits}, "finetune.seeds": [0]},
        },
    }
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    chain = build_chain(expand_chain(read_chain(str(file))))
    goals = {goal.name: goal.stage for goal in chain.goals}
    more = goals["more"]
    training = goals["dapt"].training
    assert training.start.training is more
    assert training.corpora["domain"].inputs["tokens.vocabulary"] is more
    assert goals["again"].training.start.vocabulary is more
    task = goals["tuned"].task
    assert task.key != goals["plain"].task.key
    assert "tokens.vocabulary" not in goals["plain"].task.inputs
    record = ensure(more, chain.store).record
    done = Done({more.key: record})
    assert training.start.made(done).tokenizer == record.path
    prepared = ensure(task, chain.store)
    assert record.metrics["vocabulary"] > len(load_tokenizer(tiny_bert))
    (new,) = (
        each["id"] for each in json.loads((record.path / "words.json").read_text()) if each["token"] == "nephritis"
    )
    assert all(new in tokens for tokens in Split.load(prepared.path, "train").tokens)


def test_a_module_next_to_the_layers_is_added_and_shown(
    config: Config, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights of the base model are unchanged.

    The new module is listed in the model's config and card, and the printed result shows its compute.
    """
    finished, plain = (extended_by(asking(config, module=module)) for module in ("exbert", None))
    size = len(load_tokenizer(tiny_bert))
    settings = json.loads((finished.path / "config.json").read_text())
    entry = {"kind": "exbert", "heads": 1, "inner": 21, "first_new": size}
    assert settings["additions"] == [entry]
    assert finished.path != plain.path
    states, base = load_model(finished.path).state_dict(), load_model(plain.path).state_dict()
    assert all(torch.equal(states[name], base[name]) for name in base)
    new = [name for name in states if name not in base]
    assert {name.split(".")[4] for name in new} == {"extension", "gate"}
    added = sum(states[name].numel() for name in new)
    assert finished.result.parameters_added == plain.result.parameters_added + added  # type: ignore[operator]
    assert finished.result.compute_saved < plain.result.compute_saved  # type: ignore[operator]
    card = (finished.path / "README.md").read_text()
    assert "carries exbert in addition to its architecture" in card
    assert "load_model(Path(folder), causal=False)" in card
    show_result(finished)
    assert "compute" in capsys.readouterr().err


def extended_by(config: Config) -> Finished[Extended]:
    context = Context.of(config)
    stage = change_vocabulary(context)
    assert isinstance(stage, ExtendVocabulary)
    return ensure(stage, context.store)


def test_an_impossible_module_is_refused(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="distill compares the model's hidden states before and after the extension"):
        key(asking(config, module="exbert", init="distill"))
    causal = replace(config, objective=replace(config.objective, kind="causal"))
    with pytest.raises(AdaptError):
        key(asking(causal, module="exbert"))
    gated = extended_by(asking(config, module="exbert"))
    again = replace(config, model=ModelConfig(path=str(gated.path)), corpus=replace(config.corpus))
    texts = [{"text": f"{text} carcinoma and carcinoma"} for text in sentences(10)]
    again = replace(again, corpus=replace(config.corpus, paths=write(tmp_path / "more.jsonl", texts)))
    with pytest.raises(ModelError, match="already has exBERT's module"):
        extended_by(asking(again, module="exbert", size=1))
    assert json.loads((extended_by(asking(again, size=1)).path / "config.json").read_text())["additions"]
    with pytest.raises(ModelError, match="cannot be trimmed: it carries exbert"):
        key(asking(again, action="trim"))
    with pytest.raises(ModelError, match="cannot be built from scratch: it carries exbert"):
        key(asking(again, action="scratch"))
