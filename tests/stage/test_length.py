"""How long a training is, and how its sources share it."""

from dataclasses import replace

import numpy as np
import pytest

from adapt.config import Config, CorpusConfig, MixtureConfig, SourceConfig, TrainingConfig, Workers
from adapt.corpus.batches.mixture import Mixture
from adapt.errors import ConfigError, DataError
from adapt.stage.length import length_over, mixed, sized, weights_of
from adapt.stage.text.prepare import Prepared

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


def test_a_mixture_is_of_the_sources_rows() -> None:
    found = mixture(weighted(1, 3), 1000, 129, 1)
    assert found.rows == (8, 2, 1)
    assert found.slots == (225, 675, 100)
    assert [sum(group.rows) for group in found.groups] == [8, 2, 1]


def test_a_share_for_text_without_a_row_is_refused_by_name() -> None:
    """No sample of it could ever be found, and looking for one would never end."""
    with pytest.raises(DataError, match=r"corpus\.sources: b has weight 3, but no text to train on"):
        mixture(weighted(1, 3), 1000, 0)
    with pytest.raises(DataError, match=r"replay_fraction is 0\.1, but the files of mixture\.replay_paths have"):
        mixture(weighted(1, 3), 1000, 129, 0)
    with pytest.raises(ConfigError, match=r"corpus\.sources: the weights of a, b are all 0"):
        mixture(weighted(0, 0), 1000, 129)  # of a part of the sources, as a joint training may have


@pytest.mark.parametrize(
    "config",
    [weighted(1, 0), weighted(None, None), replace(weighted(None, None), mixture=MixtureConfig(temperature=2.0))],
)
def test_text_without_a_row_that_gets_no_share_is_left_out(config: Config) -> None:
    found = mixture(replace(config, mixture=replace(config.mixture, replay_fraction=0.0)), 1000, 0, 0)
    assert found.drawn(100) == [100, 0, 0]
    assert found.locate(np.arange(100)).sources.max() == 0


def test_a_streamed_corpus_is_no_mixture_and_as_long_as_it_is_configured() -> None:
    streamed = replace(CONFIG, corpus=CorpusConfig(paths="a", streaming=True))
    limited = replace(streamed, training=replace(streamed.training, max_steps=7))
    assert mixed(limited, {"domain": Prepared(0, 0)}, None, {}) is None
    assert length_over(limited, None).steps == 7


def test_a_share_that_changes_does_so_over_the_whole_run_and_leaves_its_length() -> None:
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
    assert weights_of(weighted(1, 3).corpus) == [1, 3]


@pytest.mark.parametrize(("examples", "workers", "rows"), [(256, 1, 128), (6, 3, 3), (256, (2, 8), 128)])
def test_a_batch_is_what_so_many_examples_fill(examples: int, workers: Workers, rows: int) -> None:
    """In eights, where it is that large. Replayed text has no examples, and is not among what is counted."""
    assert size_of_batch(examples, workers) == rows


@pytest.mark.parametrize(("examples", "workers", "wrong"), [(256, 3, 3), (6, 2, 2), (256, (1, 3), 3), (256, (3, 4), 3)])
def test_a_batch_that_workers_cannot_share_is_refused(examples: int, workers: Workers, wrong: int) -> None:
    with pytest.raises(ConfigError, match=f"which {wrong} workers cannot share equally") as caught:
        size_of_batch(examples, workers)
    assert "tapt.batch_examples" in caught.value.fix


def size_of_batch(examples: int | None, workers: Workers = 1) -> int:
    """Of texts of 32 tokens a document, 64 a sequence."""
    training = TrainingConfig(global_batch_size=48, sequence_length=64)
    config = replace(CONFIG, training=training, resources=replace(CONFIG.resources, workers=workers))
    return sized(config, examples, [text(3200, documents=100)]).training.global_batch_size


def test_without_examples_the_batch_is_the_configured_one() -> None:
    assert size_of_batch(None) == 48
