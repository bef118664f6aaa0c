"""What is measured."""

from __future__ import annotations

from dataclasses import dataclass

from adapt.config.fields import NonNegativeInt, PositiveFloat, PositiveInt, how, how_list


@dataclass(frozen=True)
class EvaluationConfig:
    """The held-out measurement before and after."""

    general_paths: str | list[str] = how_list()
    """A second corpus, of general text: its loss before and after shows what was forgotten. What is trained on leaves
    its documents out; of files that are trained on too (mixture.replay_paths), the held-out share is measured."""
    general_text_field: str = how("text")
    """Field that holds the text of the general corpus."""
    max_documents: PositiveInt = 1000
    """At most this many held-out documents of a corpus are measured (a fixed sample)."""
    max_tokens: PositiveInt = 500_000
    """The sample ends once it holds this many tokens."""
    sequence_length: PositiveInt = 512
    """Longer documents are measured in pieces of this many tokens."""
    bootstrap_samples: PositiveInt = 2000
    """Resamples for the 95% interval."""
    examples: NonNegativeInt = 5
    """Held-out sentences shown with their filled masks, before and after."""
    micro_batch: PositiveInt = how(32)
    """Sequences that pass a device at once."""


@dataclass(frozen=True)
class SimilarityConfig:
    """The comparison of domains (jobs/similarity.py); each of corpus.sources is one."""

    max_documents: PositiveInt = 50_000
    """At most this many documents of a domain are looked at."""
    models: list[str] = how_list()
    """A model adapted to each source, in the sources' order (ids or folders): each one's held-out loss on every
    source's text is compared too. They must have the tokenizer of model.path."""


@dataclass(frozen=True)
class NamedModel:
    """A model to be compared."""

    name: str
    """A short name, for tables."""
    path: str
    """Its id or folder."""


@dataclass(frozen=True)
class ComparisonConfig:
    """The comparison of models (jobs/evaluate.py) on the held-out text of every one of corpus.sources."""

    models: list[NamedModel] = how_list()
    """Models to compare with model.path, a list of {name, path}. They must have its tokenizer."""
    neighbours: PositiveInt = 10
    """Nearest neighbours that vote for the label of a text of `task` and `tasks`, by the cosine of mean features."""
    pseudo_perplexity: bool = False
    """Also mask every token by itself (Salazar et al., arXiv 1910.14659): one pass a token, so it takes long."""
    pseudo_perplexity_documents: PositiveInt = 100
    """Held-out documents of each domain for it."""


@dataclass(frozen=True)
class AdviceConfig:
    """The advice on what to run first (jobs/advise.py)."""

    budget_device_hours: PositiveFloat | None = None
    """Device-hours that may be spent; recipes above it are not advised."""
    max_documents: PositiveInt = 2000
    """Documents of a corpus, and examples of a task, that are looked at."""
