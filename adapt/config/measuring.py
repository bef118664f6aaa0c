"""What is measured."""

from __future__ import annotations

from dataclasses import dataclass

from adapt.config.fields import NonNegativeInt, PositiveFloat, PositiveInt, how, how_list


@dataclass(frozen=True)
class EvaluationConfig:
    """The measurement of held-out loss before and after training."""

    general_paths: str | list[str] = how_list()
    """A second corpus, of general text: its loss before and after training shows what the model forgot. Training leaves
    out every document of this corpus. If one of its files is also trained on (mixture.replay_paths), only the held-out
    share of this corpus is measured."""
    general_text_field: str = how("text")
    """Field that holds the text of the general corpus."""
    max_documents: PositiveInt = 1000
    """At most this many held-out documents of a corpus are measured (a fixed sample)."""
    max_tokens: PositiveInt = 500_000
    """The sample ends once it holds this many tokens."""
    sequence_length: PositiveInt = 512
    """Longer documents are measured in pieces of this many tokens."""
    bootstrap_samples: PositiveInt = 2000
    """Bootstrap resamples for the 95% interval."""
    examples: NonNegativeInt = 5
    """Held-out sentences shown with their filled masks, before and after."""
    micro_batch: PositiveInt = how(32)
    """Sequences that pass through a device at once."""


@dataclass(frozen=True)
class SimilarityConfig:
    """The comparison of domains (dontstop similarity); each of corpus.sources is a domain."""

    max_documents: PositiveInt = 50_000
    """At most this many documents of a domain are looked at."""
    models: list[str] = how_list()
    """One adapted model for each source, in the order of the sources (ids or folders). The held-out loss of every model
    on the text of every source is then compared too. All models must have the tokenizer of model.path."""


@dataclass(frozen=True)
class NamedModel:
    """A model to be compared."""

    name: str
    """A short name, for tables."""
    path: str
    """Id or folder of the model."""


@dataclass(frozen=True)
class ComparisonConfig:
    """The comparison of models (dontstop evaluate) on the held-out text of every one of corpus.sources."""

    models: list[NamedModel] = how_list()
    """Models to compare with model.path, a list of {name, path}. Where one's tokenizer makes other ids than that of
    model.path, losses are compared by bytes of text."""
    neighbours: PositiveInt = 10
    """Number of nearest neighbours, by the cosine of mean features, that vote for the label of a text of `task` or
    `tasks`."""
    pseudo_perplexity: bool = False
    """Also measure pseudo-perplexity, which masks every token by itself (Salazar et al., arXiv 1910.14659). This takes
    long: every token needs a forward pass."""
    pseudo_perplexity_documents: PositiveInt = 100
    """Held-out documents of each domain on which pseudo-perplexity is measured."""


@dataclass(frozen=True)
class AdviceConfig:
    """The advice on what to run first (dontstop advise)."""

    budget_device_hours: PositiveFloat | None = None
    """Device-hours that may be spent; recipes above it are not advised."""
    max_documents: PositiveInt = 2000
    """At most this many documents of each corpus, and examples of each task, are looked at."""
