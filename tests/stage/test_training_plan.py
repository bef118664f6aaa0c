"""Tests of training plans: length, mixture of sources, and warnings about held-out text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.config import (
    Config,
    CorpusConfig,
    MixtureConfig,
    ModelConfig,
    SourceConfig,
    StorageConfig,
    TaskConfig,
    TrainingConfig,
    Workers,
)
from adapt.corpus.corpora import warn_of_little
from adapt.corpus.heldout import key_of
from adapt.corpus.sample_order import Mixture
from adapt.corpus.token_shards import write_shard
from adapt.job.training_jobs import dapt_stages, tapt_stages
from adapt.runner import Done, Stage
from adapt.stage.context import Context
from adapt.stage.prepare_text import Prepared
from adapt.stage.train import Train
from adapt.stage.training_plan import (
    documents_as_rows,
    length_over,
    mixed,
    part_of,
    regime_of,
    sized,
    warn_of_unmeasured,
    weights_of,
)
from adapt.support.errors import ConfigError, DataError
from adapt.train.capacity.forecast import DocumentsAsRows
from tests.samples import is_heldout, labelled, sentences, write
from tests.stage.done import record_of

CONFIG = Config(training=TrainingConfig(global_batch_size=8, sequence_length=128))


def text(tokens: int, documents: int = 1) -> Prepared:
    return Prepared(0, 0, train_documents=documents, train_tokens=tokens)


def weighted(*weights: float | None) -> Config:
    sources = [SourceConfig(name, paths=name, weight=each) for name, each in zip("ab", weights, strict=True)]
    return replace(CONFIG, corpus=CorpusConfig(sources=sources))


def mixture(config: Config, a: int, b: int, replay: int | None = None) -> Mixture:
    found = mixed(config, {"a": text(a), "b": text(b)}, None if replay is None else text(replay), {})
    assert found
    return found


def test_a_mixture_is_made_from_the_rows_of_sources() -> None:
    found = mixture(weighted(1, 3), 1000, 129, 1)
    assert found.rows == (8, 2, 1)
    assert found.slots == (225, 675, 100)
    assert [sum(group.rows) for group in found.groups] == [8, 2, 1]


def test_a_share_for_text_without_rows_is_refused_by_name() -> None:
    """A source without rows could never fill its share of the mixture."""
    with pytest.raises(DataError, match=r"corpus\.sources: b has weight 3, but no text to train on"):
        mixture(weighted(1, 3), 1000, 0)
    with pytest.raises(
        DataError, match=r"replay_fraction is 0\.1, but the files of mixture\.replay_paths contain no text"
    ):
        mixture(weighted(1, 3), 1000, 129, 0)
    with pytest.raises(ConfigError, match=r"corpus\.sources: the weights of a, b are all 0"):
        mixture(weighted(0, 0), 1000, 129)  # for example, if the other sources are not trained on


@pytest.mark.parametrize(
    "config",
    [weighted(1, 0), weighted(None, None), replace(weighted(None, None), mixture=MixtureConfig(temperature=2.0))],
)
def test_text_without_rows_and_share_is_omitted(config: Config) -> None:
    found = mixture(replace(config, mixture=replace(config.mixture, replay_fraction=0.0)), 1000, 0, 0)
    assert found.drawn(100) == [100, 0, 0]
    assert found.locate(np.arange(100)).sources.max() == 0


def test_a_streamed_corpus_has_no_mixture_and_the_configured_length() -> None:
    streamed = replace(CONFIG, corpus=CorpusConfig(paths="a", streaming=True))
    limited = replace(streamed, training=replace(streamed.training, max_steps=7))
    assert mixed(limited, {"domain": Prepared(0, 0)}, None, {}) is None
    assert length_over(limited, None).steps == 7


def test_a_changing_share_spans_the_run_and_keeps_its_length() -> None:
    config = replace(CONFIG, mixture=MixtureConfig(replay_fraction=0.0, replay_last=0.5))
    whole = mixed(config, {"domain": text(640_000)}, text(64_000), {})
    assert whole
    assert whole.changing
    steps = length_over(config, whole).steps
    assert steps == length_over(replace(config, mixture=MixtureConfig(replay_fraction=0.25)), whole).steps
    domain, general = whole.drawn(steps * config.training.global_batch_size)
    assert general / (domain + general) == pytest.approx(0.25, abs=0.01)


def test_sources_without_weights_have_none() -> None:
    assert weights_of(weighted(None, None).corpus) is None
    assert weights_of(weighted(1, 3).corpus) == (1, 3)


@pytest.mark.parametrize(("examples", "workers", "rows"), [(256, 1, 128), (6, 3, 3), (256, (2, 8), 128)])
def test_the_batch_size_follows_from_the_number_of_examples(examples: int, workers: Workers, rows: int) -> None:
    """A batch of at least 8 rows is a multiple of 8 rows. Replayed text does not count as examples."""
    assert size_of_batch(examples, workers) == rows


@pytest.mark.parametrize(("examples", "workers", "wrong"), [(256, 3, 3), (6, 2, 2), (256, (1, 3), 3), (256, (3, 4), 3)])
def test_a_batch_that_workers_cannot_share_is_refused(examples: int, workers: Workers, wrong: int) -> None:
    with pytest.raises(ConfigError, match=f"which {wrong} workers cannot share equally") as caught:
        size_of_batch(examples, workers)
    assert "tapt.batch_examples" in caught.value.fix


def size_of_batch(examples: int | None, workers: Workers = 1) -> int:
    """Returns the batch size [rows] for documents of 32 tokens in rows of 64 tokens."""
    training = TrainingConfig(global_batch_size=48, sequence_length=64)
    config = replace(CONFIG, training=training, resources=replace(CONFIG.resources, workers=workers))
    return sized(config, examples, [text(3200, documents=100)]).training.global_batch_size


def test_without_examples_the_batch_is_the_configured_one() -> None:
    assert size_of_batch(None) == 48


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
    """Returns the warning that a training run prints for these texts if `share` of them is held out."""
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
    warn_of_unmeasured(training.corpora, Done(records))
    return capsys.readouterr().err


def test_documents_of_the_first_rows_are_known_before_the_training(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents of 5, 3 and 9 tokens are cut into rows of 8 tokens. A model that packs documents needs no such rows."""
    start, one_by_one = Context.of(config).start, replace(config, mixture=MixtureConfig(order="sequential"))
    training = replace(one_by_one.training, sequence_length=8, global_batch_size=3, max_steps=1)
    short = replace(one_by_one, training=training)
    write_shard(tmp_path / "train-000000-000000.arrow", [[1] * 5, [2] * 3, [3] * 9], 10)
    part = part_of(short, lambda length: Mixture.of([3], 0, short.mixture))
    assert documents_as_rows(short, start, part, [tmp_path]) is None
    monkeypatch.setattr("adapt.stage.training_plan.way_of_documents", lambda *_: "padded")
    assert documents_as_rows(short, start, None, []) == DocumentsAsRows("padded", None)
    found = documents_as_rows(short, start, part, [tmp_path])
    assert found
    assert found.rows
    assert sorted(found.rows) == [[1], [5, 3], [8]]


KINDS = ("train", "heldout")


def trained(config: Config, share: float) -> Train:
    return dapt_stages(Context.of(replace(config, corpus=replace(config.corpus, heldout_fraction=share)))).training


@pytest.mark.parametrize(
    ("held_out", "problem"),
    [
        (0, "no loss will be measured"),
        (1, "no loss will be measured"),
        (3, "losses will have no confidence interval"),
        (17, "losses and their intervals will be unreliable"),
    ],
)
def test_too_little_held_out_text_is_reported_once(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], held_out: int, problem: str
) -> None:
    keys = [0, *sorted(map(key_of, TEXTS))]
    share = (keys[held_out] + keys[held_out + 1]) / 2**65
    training = trained(replace(config, name=f"small-{held_out}"), share)
    shown = said(training, TEXTS, share, tmp_path / "prepared", capsys)
    assert f"small-{held_out}: {held_out} of the 60 documents are held out (corpus.heldout_fraction {share:g})" in shown
    assert f"so {problem}; raise corpus.heldout_fraction, or set it to 0" in shown
    assert said(training, TEXTS, share, tmp_path / "again", capsys) == ""


def test_no_warning_if_nothing_is_held_out_or_other_text_is_measured(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(trained(config, 0.0), TEXTS, 0.0, tmp_path / "none", capsys) == ""
    files = {split: write(tmp_path / f"{split}.jsonl", labelled(8, seed)) for seed, split in enumerate(SPLITS)}
    of_task = tapt_stages(Context.of(replace(config, task=TaskConfig(**files)))).training
    assert said(of_task, TEXTS, 0.0, tmp_path / "task", capsys) == ""


SPLITS = ("train", "dev", "test")


def test_streamed_text_of_unknown_size(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = trained(config, 0.001)
    text: Stage[Any] = training.corpora["domain"]
    record = record_of(text, heldout_documents=0, train_documents=None)
    warn_of_unmeasured(training.corpora, Done({text.key: record}))
    shown = capsys.readouterr().err
    assert "0 of the documents are held out (corpus.heldout_fraction 0.001), so no loss will be measured" in shown


def test_a_completely_measured_text_may_be_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_little(2, "general", "evaluation.general_paths")
    assert capsys.readouterr().err == ""
    warn_of_little(1, "general", "evaluation.general_paths")
    said = capsys.readouterr().err
    assert "the loss on this text will not be measured, because the text has 1 of at least 2 required documents" in said


def test_the_regime_counts_how_often_each_text_is_read() -> None:
    """80 steps of 8 rows read each of the 64 domain rows 8 times, and each of the 32 general rows 4 times."""
    training = replace(CONFIG.training, max_steps=80)
    config = replace(CONFIG, mixture=MixtureConfig(replay_fraction=0.2), training=training)
    named = {"domain": text(64 * 128), "(replay)": text(32 * 128)}
    whole = mixed(config, {"domain": named["domain"]}, named["(replay)"], {})
    part = part_of(config, lambda length: whole)
    found = regime_of(named, ["domain"], part, 1_000_000)
    assert found is not None
    assert (found.tokens, found.parameters) == (64 * 128, 1_000_000)
    assert found.passes == pytest.approx(8, rel=0.02)
    assert found.general_passes == pytest.approx(4, rel=0.02)
    assert found.general_share == pytest.approx(0.2, abs=0.01)
    streamed = part_of(replace(config, corpus=CorpusConfig(streaming=True)), lambda length: None)
    assert regime_of(named, ["domain"], streamed, 1_000_000) is None
