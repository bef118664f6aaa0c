"""How long a training is, and over which mixture of its sources."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from adapt.config import Config, CorpusConfig, TrainingConfig, fewest_of, most_of
from adapt.console import log
from adapt.errors import ConfigError, DataError
from adapt.method.table import method_of, past_fraction
from adapt.stage.text.prepare import Prepared
from adapt.train.schedule import RunLength, length_of, rows_of

if TYPE_CHECKING:
    from adapt.corpus.batches.mixture import Mixture


@dataclass(frozen=True)
class SourceShare:
    """What a source gave to a run."""

    rows: int
    tokens: int
    """Tokens that the run took, to within a row."""
    share: float
    """Share of this source in the rows of the run."""


def sized(config: Config, batch_examples: int | None, texts: Sequence[Prepared]) -> Config:
    """The same with the global batch that so many examples fill; in eights, so that workers can share it.

    Args:
        config: of the training.
        batch_examples: None leaves the batch as it is configured.
        texts: what the examples are of.

    Raises:
        ConfigError: these workers cannot share it.
    """
    if not batch_examples:
        return config
    documents = sum(text.train_documents or 0 for text in texts)
    tokens = sum(text.train_tokens or 0 for text in texts)
    training, workers = config.training, config.resources.workers
    rows = max(1, round(batch_examples * tokens / max(documents, 1) / training.sequence_length))
    batch = rows if rows < 8 else round(rows / 8) * 8
    if wrong := next((number for number in (fewest_of(workers), most_of(workers)) if batch % number), None):
        raise ConfigError(
            f"{batch_examples} examples fill {batch} sequences, which {wrong} workers cannot share equally",
            "use another number of resources.workers, or set tapt.batch_examples to null and"
            " training.global_batch_size to a multiple of resources.workers",
        )
    return replace(config, training=replace(training, global_batch_size=batch))


def length_over(config: Config, mixture: "Mixture | None") -> RunLength:
    """How long a training is.

    Args:
        config: of the training.
        mixture: of its sources; None where the corpus is streamed.
    """
    training = config.training
    if not mixture:
        return length_of(training, sys.maxsize)
    most = mixture.exhausted if config.mixture.exhausted == "stop" else None
    length = length_of(training, mixture.epoch, most)
    if length.rows < training.global_batch_size:
        log(f"the corpus is {length.rows} rows: a batch of {training.global_batch_size} repeats them")
    return length


def length_matters(config: Config, has_general: bool) -> str:
    """Names what makes a step of a training compute something else in a longer training.

    Where nothing does, a longer training of schedule `wsd` starts from the state of a shorter one. Data order, masks
    and dropout are functions of (seed, step), so only the method and the mixture can depend on the length.

    Args:
        config: of the training.
        has_general: whether general text is mixed in.

    Returns:
        The field of the configuration with its value; empty if nothing depends on the length.
    """
    from adapt.corpus.batches.mixture import share_changes

    if method_of(config).depends_on_length:
        return f"method.kind {config.method.kind}"
    if has_general and share_changes(config.mixture):
        return f"mixture.replay_last {config.mixture.replay_last:g}"
    return ""


def mixed(
    config: Config, sources: Mapping[str, Prepared], replay: Prepared | None, recalled: Mapping[str, Prepared]
) -> "Mixture | None":
    """How the sources of a training share the run; None where the corpus is streamed.

    Args:
        config: of the training.
        sources: texts of the domain.
        replay: general text.
        recalled: texts of the domains before.

    Raises:
        DataError: a share of the run is for text that has no row.
    """
    from adapt.corpus.batches.mixture import Mixture, replay_shares

    if config.corpus.streaming:
        return None
    rows, past = (
        {name: rows_of(text.train_tokens or 0, config.training) for name, text in texts.items()}
        for texts in (sources, recalled)
    )
    replayed = [rows_of(replay.train_tokens or 0, config.training)] if replay else []
    weights = weights_of(config.corpus)
    _check_rows(rows, weights)
    if replayed == [0] and any(replay_shares(config.mixture)):
        raise DataError(
            f"mixture.replay_fraction is {config.mixture.replay_fraction:g}, but the files of mixture.replay_paths"
            " have no text to train on",
            "add text to these files, or set mixture.replay_fraction to 0",
        )
    if past and not any(past.values()):
        raise DataError(
            f"{', '.join(past)}: the domains before have no text to replay",
            "give them more text, lower corpus.heldout_fraction, or set method.kind to plain",
        )
    make = partial(
        Mixture.of,
        list(rows.values()),
        config.seed,
        config.mixture,
        weights,
        replayed,
        list(past.values()),
        past_fraction(config),
    )
    if config.mixture.replay_last is None or not replay:
        return make()
    return make(samples=length_over(config, make()).steps * config.training.global_batch_size)


def weights_of(corpus: CorpusConfig) -> list[float] | None:
    """The configured weights of the sources; None where they have none.

    Raises:
        ConfigError: all are 0, as those of a part of the sources may be.
    """
    weights = [source.weight for source in corpus.sources if source.weight is not None]
    if weights and not any(weights):
        names = ", ".join(source.name for source in corpus.sources)
        raise ConfigError(f"corpus.sources: the weights of {names} are all 0", "give one of them a weight above 0")
    return weights or None


def _check_rows(rows: Mapping[str, int], weights: Sequence[float] | None) -> None:
    """Refuses a share of the run for text that has no row, of which no sample could ever be found.

    Sources without weights share in proportion to their rows, which may be none.
    """
    for name, weight in zip(rows, weights or [0.0] * len(rows), strict=True):
        if weight and not rows[name]:
            raise DataError(
                f"corpus.sources: {name} has weight {weight:g}, but no text to train on",
                "give this source more text, lower corpus.heldout_fraction, or set the weight to 0",
            )


def shares_of(
    named: Mapping[str, Prepared], mixture: "Mixture | None", steps: int, training: TrainingConfig
) -> dict[str, SourceShare] | None:
    """What each text gave to a run, by its name.

    Args:
        named: the texts, in the order in which the mixture numbers them.
        mixture: of the run; None where the corpus is streamed.
        steps: of the run.
        training: its settings.
    """
    if mixture is None:
        return None
    drawn = mixture.drawn(steps * training.global_batch_size)
    shares = {}
    for (name, text), rows in zip(named.items(), drawn, strict=True):
        tokens = text.train_tokens or 0
        given = round(rows * tokens / max(rows_of(tokens, training), 1))
        shares[name] = SourceShare(rows, given, rows / max(sum(drawn), 1))
    return shares
