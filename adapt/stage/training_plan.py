"""Plans a training run: batch size, length, mixture, and dimensions of the model.

This module also warns if too little text is held out to measure the training run.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import repeat
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from adapt.advise.regime import Regime
from adapt.config import Config, CorpusConfig, MixtureConfig, TrainingConfig, fewest_of, most_of, what
from adapt.corpus.corpora import FEWEST_DOCUMENTS
from adapt.corpus.sample_order import Mixture, proportions, replay_shares
from adapt.corpus.token_shards import TokenStream
from adapt.evaluate.measurements import FEW_DOCUMENTS, FEWEST
from adapt.method.table import past_fraction
from adapt.model.size import ModelSize, model_size
from adapt.model.start import Start
from adapt.runner import Done, Stage
from adapt.stage.preflight import way_of_documents
from adapt.stage.prepare_text import Prepare, Prepared, PrepareTexts
from adapt.stage.vocabulary_stages import ExtendVocabulary, TeachRows
from adapt.support.errors import ConfigError, DataError
from adapt.support.schema import SHARD_GLOB, STARTS
from adapt.terminal.console import log
from adapt.train.capacity.forecast import DocumentsAsRows
from adapt.train.phases import Phase
from adapt.train.schedule import RunLength, length_of, rows_of, shapes_of
from adapt.train.spikes import DEVIATIONS, WINDOW
from adapt.train.training_run import Stretch


@dataclass(frozen=True)
class SourceShare:
    """Number of rows and tokens that a training run read from a source."""

    rows: int
    tokens: int
    """Number of tokens, up to an error of about one row."""
    share: float
    """Share of this source in the rows of the run."""


_LATER = {
    name: getattr(TrainingConfig(), name)
    for name in (
        *("max_flops", "decay", "embedding_rate", "layer_decay", "freeze", "phases", "batch_ramp", "length_ramp"),
        *("stop", "keep", "keep_metric"),
    )
}
"""Fields of `training` that were added later, with their defaults. Keys of older results do not contain them."""


def training_what(training: TrainingConfig) -> dict[str, Any]:
    """Returns the settings of a training run that enter the key of its stage.

    Newer fields at their defaults are left out, so that the keys of older results remain valid. `on_spike: stop` and
    `on_spike: skip` give the same key, so a run that stopped at a spike can continue by skipping it.
    """
    entering = {name: value for name, value in what(training).items() if name not in _LATER or value != _LATER[name]}
    if training.rules:
        entering["stop"] = [asdict(rule) for rule in training.rules]
    if training.keep == "best":
        entering["keep_metric"] = training.keep_metric
    else:
        entering.pop("keep_metric", None)
    if entering.pop("on_spike"):
        entering |= {"on_spike": "skip", "spike_window_steps": WINDOW, "spike_deviations": DEVIATIONS}
    return entering


def sized(config: Config, batch_examples: int | None, texts: Sequence[Prepared]) -> Config:
    """Returns the configuration with a global batch that contains about `batch_examples` examples, unless it is None.

    Batches of 8 rows or more are multiples of 8, so that workers can share them.
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
            f"tapt.batch_examples {batch_examples} fills {batch} sequences, which {wrong} workers cannot share equally",
            "use another number of resources.workers, or set tapt.batch_examples to null and"
            " training.global_batch_size to a multiple of resources.workers",
        )
    return replace(config, training=replace(training, global_batch_size=batch))


def length_over(config: Config, mixture: "Mixture | None") -> RunLength:
    """Returns the length of a training run. Without a mixture, the corpus is streamed."""
    training = config.training
    if not mixture:
        return length_of(training, sys.maxsize)
    length = length_of(training, mixture.epoch)
    if length.rows < training.global_batch_size:
        log(f"the corpus fills only {length.rows} sequences, so a batch of {training.global_batch_size} repeats them")
    return length


@dataclass(frozen=True)
class RunPart:
    """The part of a training run that one stage `train` covers: the whole run, or one of its phases."""

    config: Config
    """Configuration with the batch size as a number of rows and the length as a number of steps."""
    first: int
    """Number of steps of earlier phases."""
    last: int
    """Number of steps up to the end of this part, including steps of earlier phases."""
    stretches: tuple[Stretch, ...]
    """The steps, divided into ranges with equal batch size and row length. Empty if the corpus is streamed."""
    tokens: int
    """Number of tokens up to the end of this part, if all rows are full."""
    drawn: tuple[int, ...]
    """Number of tokens drawn from each source up to the end, if all rows are full. Empty for a streamed corpus."""

    def up_to(self, step: int) -> "RunPart":
        """Returns the part without the steps after `step`, at which the training ended early."""
        stretches = [replace(each, last=min(each.last, step)) for each in self.stretches if each.first < step]
        return replace(self, stretches=tuple(stretches))


def part_of(
    config: Config,
    mixture_at: Callable[[int], "Mixture | None"],
    phase: Phase | None = None,
    before: RunPart | None = None,
) -> RunPart:
    """Computes the part of a training run that one stage `train` covers.

    A phase continues the order of samples where the previous phase ended. If the row length changes,
    its first sample and the first row of each source are computed from the number of tokens that were read before. The
    same holds for ranges of steps (stretches) between which a ramp changes the batch size or the row length.

    Args:
        config: configuration of the training.
        mixture_at: function that returns the mixture of the training's sources, from the start of a run, for rows of a
            given length [tokens]. The function returns None if the corpus is streamed.
        phase: phase of the run; None for a run without phases.
        before: part of the previous phase; None for the first phase.
    """
    first, tokens, drawn = (before.last, before.tokens, before.drawn) if before else (0, 0, ())
    steps = steps_over(config, mixture_at(config.training.sequence_length), phase)
    stretches: list[Stretch] = []
    for shape in shapes_of(config.training, steps):
        length = shape.sequence_length
        if mixture := mixture_at(length):
            sample = 0
            if drawn:
                # A phase with a changing share counts samples from 0, because the share changes over the phase.
                sample = 0 if mixture.changing and not stretches else ceil(tokens / length)
                mixture = mixture.going_on(sample, [ceil(source / length) for source in drawn])
            numbers = first + shape.first, first + shape.last
            stretch = Stretch(*numbers, shape.global_batch_size, length, mixture, sample)
            stretches.append(stretch)
            drawn = tuple(rows * length + old for rows, old in zip(stretch.rows, drawn or repeat(0), strict=False))
        tokens += shape.tokens
    return RunPart(config, first, first + steps, tuple(stretches), tokens, drawn)


_ROWS = 64
"""Maximum number of rows whose documents are examined to forecast padding."""


def documents_as_rows(
    config: Config, start: Start, part: RunPart | None, folders: Sequence[Path]
) -> DocumentsAsRows | None:
    """Returns the documents of the first training steps, if the model does not accept packed documents, else None.

    Args:
        config: configuration of the training.
        start: the initial model.
        part: steps of the training. None if the text is not prepared yet.
        folders: folders of the prepared texts, in the order of the mixture.
    """
    if (way := way_of_documents(config, start)) is None:
        return None
    if part is None or not part.stretches:
        return DocumentsAsRows(way, None)
    stretch = part.stretches[0]
    count = min(stretch.global_batch_size, _ROWS)
    places = stretch.mixture.locate(np.arange(stretch.sample, stretch.sample + count))
    rows: list[list[int]] = []
    for source, row in zip(places.sources.tolist(), places.rows.tolist(), strict=True):
        taken = TokenStream.open(folders[source], SHARD_GLOB).take([row], stretch.sequence_length)
        length = int(taken["lengths"][0])
        rows.append(np.diff([*np.flatnonzero(taken[STARTS][0, :length]), length]).tolist())
    return DocumentsAsRows(way, rows)


def steps_over(config: Config, mixture: "Mixture | None", phase: Phase | None) -> int:
    """Returns the number of steps of a training run, or of one of its phases."""
    length = length_over(config, mixture)
    return phase.steps(length) if phase else length.steps


def mixed(
    config: Config,
    sources: Mapping[str, Prepared],
    replay: Prepared | None,
    recalled: Mapping[str, Prepared],
    phase: Phase | None = None,
) -> "Mixture | None":
    """Returns the mixture: the share of each source in a run, or in a phase of it. None if the corpus is streamed.

    Raises:
        DataError: a text has a share of the run, but no rows.
    """
    if config.corpus.streaming:
        return None
    rows, past = (
        {name: rows_of(text.train_tokens or 0, config.training) for name, text in texts.items()}
        for texts in (sources, recalled)
    )
    replayed = [rows_of(replay.train_tokens or 0, config.training)] if replay else []
    weights: Sequence[float] | None = weights_of(config.corpus)
    if config.mixture.rephrased_fraction is not None:
        weights = weights_with_rephrased(rows, weights, config.mixture)
    _check_rows(rows, weights)
    if replayed == [0] and any(replay_shares(config.mixture)):
        is_made = config.mixture.replay_kind != "files"
        texts, fix = (
            ("there is no generated text", "raise generate.tokens")
            if is_made
            else ("the files of mixture.replay_paths contain no text", "add text to these files")
        )
        raise DataError(
            f"mixture.replay_fraction is {config.mixture.replay_fraction:g}, but {texts} to train on",
            f"{fix}, or set mixture.replay_fraction to 0",
        )
    if past and not any(past.values()):
        raise DataError(
            f"the earlier domains have no text to replay: {', '.join(past)}",
            "give these domains more text, lower corpus.heldout_fraction, or set method.kind to plain",
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
    shapes = shapes_of(config.training, steps_over(config, make(), phase))
    return make(samples=sum((shape.last - shape.first) * shape.global_batch_size for shape in shapes))


REPHRASED = "(rephrased)"
"""Suffix of the names of sources that consist of rewritten documents."""


def weights_with_rephrased(
    rows: Mapping[str, int], weights: Sequence[float] | None, mixture: MixtureConfig
) -> list[float]:
    """Returns the weight of each source if rewritten documents have the share `mixture.rephrased_fraction`.

    Args:
        rows: number of rows of each source, including the sources of rewritten documents.
        weights: weights of the other sources; None for shares by number of rows.
        mixture: settings of the mixture.
    """
    rephrased = [count for name, count in rows.items() if name.endswith(REPHRASED)]
    others = [count for name, count in rows.items() if not name.endswith(REPHRASED)]
    share = mixture.rephrased_fraction if any(rephrased) else 0.0
    assert share is not None
    own = proportions(weights) if weights else proportions(others, mixture.temperature) if any(others) else others
    written = proportions(rephrased) if any(rephrased) else [0.0] * len(rephrased)
    shares = iter([each * (1 - share) for each in own]), iter([each * share for each in written])
    return [next(shares[name.endswith(REPHRASED)]) for name in rows]


def weights_of(corpus: CorpusConfig) -> tuple[float, ...] | None:
    """Returns the configured weights of the sources. None if the sources have no weights.

    Raises:
      ConfigError: all weights are 0, which can happen if only some of the sources are trained on.
    """
    weights = tuple(source.weight for source in corpus.sources if source.weight is not None)
    if weights and not any(weights):
        names = ", ".join(source.name for source in corpus.sources)
        raise ConfigError(f"corpus.sources: the weights of {names} are all 0", "give one of them a weight above 0")
    return weights or None


def _check_rows(rows: Mapping[str, int], weights: Sequence[float] | None) -> None:
    """Checks that every text with a share of the run has at least one row.

    If there are no weights, every source passes, because shares are proportional to numbers of rows.
    """
    for name, weight in zip(rows, weights or [0.0] * len(rows), strict=True):
        if weight and not rows[name]:
            raise DataError(
                f"corpus.sources: {name} has weight {weight:g}, but no text to train on",
                "give this source more text, lower corpus.heldout_fraction, or set the weight to 0",
            )


def shares_of(named: Mapping[str, Prepared], part: RunPart) -> dict[str, SourceShare] | None:
    """Returns the rows and tokens that each text contributed to a training run, keyed by the text's name.

    `named` has the texts in the order of the mixture. Returns None if the corpus was streamed.
    """
    if not part.stretches:
        return None
    rows = [sum(counts) for counts in zip(*(stretch.rows for stretch in part.stretches), strict=True)]
    shares = {}
    for source, (name, text) in enumerate(named.items()):
        tokens = text.train_tokens or 0
        seen = sum(
            stretch.rows[source] * tokens / max(ceil(tokens / stretch.sequence_length), 1) for stretch in part.stretches
        )
        shares[name] = SourceShare(rows[source], round(seen), rows[source] / max(sum(rows), 1))
    return shares


def regime_of(named: Mapping[str, Prepared], domain: Sequence[str], part: RunPart, parameters: int) -> Regime | None:
    """Returns how large the domain's text is relative to the model, and how often the run reads each text.

    Returns None if the corpus is streamed. `domain` has the names of the domain's texts among `named`, and `parameters`
    is the number of parameters of the model.
    """
    shares = shares_of(named, part)
    if shares is None:
        return None
    tokens = {name: text.train_tokens or 0 for name, text in named.items()}
    own = sum(tokens[name] for name in domain)
    general = shares.get(REPLAYED)
    return Regime(
        parameters,
        own,
        sum(shares[name].tokens for name in domain) / max(own, 1),
        general.tokens / max(tokens[REPLAYED], 1) if general else None,
        general.share if general else 0.0,
    )


REPLAYED = "(replay)"
"""Name of replayed general text among the texts of a training run."""
WANTED_SHARE, WANTED_MOST = 0.1, 30
"""Share of documents that the advice suggests to hold out, and the maximum number that it suggests: 30 documents give a
reliable interval."""


def warn_of_unmeasured(corpora: Mapping[str, Stage[Prepared]], done: Done) -> None:
    """Warns once per process and text if too little text is held out to measure a training run.

    There is no warning if no text is meant to be held out: the share is 0, or other files are measured (TAPT).
    """
    shares = [share_held_out(stage) for stage in corpora.values()]
    texts = [done[stage].result for stage in corpora.values()]
    held_out = sum(text.heldout_documents for text in texts)
    if not all(shares) or held_out >= FEW_DOCUMENTS:
        return
    trained = [text.train_documents for text in texts]
    documents = "" if None in trained else f"{held_out + sum(count or 0 for count in trained):,} "
    problem = "losses and their intervals will be unreliable"
    if held_out < FEWEST:
        problem = "losses will have no confidence interval"
    if held_out < FEWEST_DOCUMENTS:
        problem = "no loss will be measured"
    _warn_once(
        f"{', '.join(stage.name for stage in corpora.values())}: {held_out} of the {documents}documents are held out"
        f" (corpus.heldout_fraction {shares[0]:g}), so {problem}; raise corpus.heldout_fraction, or set it to 0 to"
        " train without a measurement"
    )


_warn_once = cache(log)


def documents_to_measure(documents: int) -> int:
    """Returns the number of a text's documents that should be held out."""
    return max(FEWEST_DOCUMENTS, min(round(WANTED_SHARE * documents), WANTED_MOST))


def share_held_out(stage: Stage[Prepared]) -> float:
    """Returns the share of a text that is held out. Returns 0 for a text that joins several sources."""
    if isinstance(stage, Prepare):
        return stage.files.corpus.heldout_fraction
    return stage.heldout_fraction if isinstance(stage, PrepareTexts) else 0.0


def first_size(start: Start, done: Done) -> ModelSize | None:
    """Returns the dimensions of a chain's first model, with its vocabulary after extension. None if unknown.

    Methods may make the model grow later. If the vocabulary will be extended, the new tokens are included, except for
    `elbow`, whose number of tokens is unknown. If the vocabulary will be trimmed or built from scratch, the dimensions
    before this change are returned.
    """
    if (made := start.vocabulary) is None or made in done:
        return model_size(start.with_tokenizer(done).model)
    extended = made.extended if isinstance(made, TeachRows) else made
    before = getattr(extended, "start", None)
    size = first_size(before, done) if before else None
    return extended.size_ahead(size) if size and isinstance(extended, ExtendVocabulary) else size
