"""What is said before a training of which too little text is held out, and that its advice works."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, CorpusConfig, ModelConfig, StorageConfig, TaskConfig, TrainingConfig
from adapt.corpus.screening.heldout import is_heldout, key_of
from adapt.corpus.shards.tokens import write_shard
from adapt.corpus.shared import warn_of_little
from adapt.job.training_jobs import dapt_stages, tapt_stages
from adapt.runner import Done, Stage
from adapt.stage.context import Context
from adapt.stage.measurable import warn_of_unmeasured
from adapt.stage.train import Train
from tests.samples import labelled, sentences, write
from tests.stage.done import record_of

TEXTS = sentences(60, seed=4)


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    return Config(
        name="small",
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(paths=write(tmp_path / "domain.jsonl", [{"text": text} for text in TEXTS])),
        training=TrainingConfig(sequence_length=64),
        evaluation=replace(Config().evaluation, sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def said(training: Train, texts: list[str], share: float, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a training on these texts, of which a share is held out."""
    kept = {kind: [text for text in texts if is_heldout(text, share) == (kind == "heldout")] for kind in KINDS}
    folder.mkdir(exist_ok=True)
    for kind, some in kept.items():
        if some:
            path = folder / f"{kind}-000000-000000.arrow"
            write_shard(path, [[1, 2]] * len(some), 10, keys=[key_of(text) for text in some])
    counts: dict[str, Any] = {f"{kind}_documents": len(some) for kind, some in kept.items()}
    records = {}
    for text in training.corpora.values():
        records[text.key] = replace(record_of(text, **counts), path=folder)
    warn_of_unmeasured(training.name, training.corpora, Done(records))
    return capsys.readouterr().err


KINDS = ("train", "heldout")


def trained(config: Config, share: float) -> Train:
    return dapt_stages(Context.of(replace(config, corpus=replace(config.corpus, heldout_fraction=share)))).training


def test_that_nothing_is_held_out_is_said_with_a_share_that_works(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [text for text in TEXTS if not is_heldout(text, 0.01)]
    shown = said(trained(config, 0.01), texts, 0.01, tmp_path / "prepared", capsys)
    assert f"small: nothing will be measured: none of its {len(texts)} documents is held out" in shown
    assert "set it to 0 to train without a measurement" in shown
    found = re.search(r"set corpus\.heldout_fraction to (\S+), which holds out (\d+),", shown)
    assert found
    assert sum(is_heldout(text, float(found[1])) for text in texts) == int(found[2]) >= 6
    again = said(trained(config, float(found[1])), texts, float(found[1]), tmp_path / "again", capsys)
    assert again == ""


def test_that_too_little_is_held_out_is_said(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ordered = sorted(TEXTS, key=key_of)
    for held_out, words in ((1, "nothing will be measured: 1 of its 60"), (3, "only 3 of its 60 documents are held")):
        share = (key_of(ordered[held_out - 1]) + key_of(ordered[held_out])) / 2**65
        assert words in said(trained(config, share), TEXTS, share, tmp_path / str(held_out), capsys)


def test_nothing_is_said_where_nothing_was_wanted_or_other_text_is_measured(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(trained(config, 0.0), TEXTS, 0.0, tmp_path / "none", capsys) == ""
    files = {split: write(tmp_path / f"{split}.jsonl", labelled(8, seed)) for seed, split in enumerate(SPLITS)}
    of_task = tapt_stages(Context.of(replace(config, task=TaskConfig(**files)))).training
    assert said(of_task, TEXTS, 0.0, tmp_path / "task", capsys) == ""


SPLITS = ("train", "dev", "test")


def test_texts_that_are_too_few_for_any_share(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(trained(config, 1e-9), TEXTS[:2], 1e-9, tmp_path / "two", capsys)
    assert "give it more text, or set it to 0" in shown


def test_streamed_text_of_unknown_size(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = trained(config, 0.001)
    text: Stage[Any] = training.corpora["domain"]
    record = record_of(text, heldout_documents=0, train_documents=None)
    warn_of_unmeasured("small", training.corpora, Done({text.key: record}))
    shown = capsys.readouterr().err
    assert "none of its documents is held out (corpus.heldout_fraction 0.001)" in shown
    assert "set corpus.heldout_fraction to 0.01 or more" in shown


def test_a_text_that_is_measured_whole_may_be_too_little(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_little(2, "general", "evaluation.general_paths")
    assert capsys.readouterr().err == ""
    warn_of_little(1, "general", "evaluation.general_paths")
    assert "general: its loss will not be measured, because it has 1 document; add text to" in capsys.readouterr().err
