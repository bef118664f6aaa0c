"""Sections that single jobs have: evaluation, comparison and advice, merging, vocabulary, searches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adapt.config.fields import Fraction, NonNegativeInt, OpenFraction, PositiveFloat, PositiveInt, how, how_list


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
    mask_fraction: OpenFraction = how(0.15)
    """Share of the tokens of a document that are hidden when the held-out loss of an encoder is measured: single
    tokens, 80% replaced by the mask token, 10% by a random token. It is the same whatever `objective` training uses, so
    that losses of different runs can be compared. Not used with `objective.kind: causal`."""
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
    """Also measure pseudo-perplexity on the first 100 held-out documents of each domain. It masks every token by itself
    (Salazar et al., arXiv 1910.14659). This takes long: every token needs a forward pass."""


@dataclass(frozen=True)
class AdviceConfig:
    """The advice on what to run first (dontstop advise)."""

    budget_device_hours: PositiveFloat | None = None
    """Device-hours that may be spent; recipes above it are not advised."""
    max_documents: PositiveInt = 2000
    """At most this many documents of each corpus, and examples of each task, are looked at."""


@dataclass(frozen=True)
class MergeConfig:
    """A model made of others without training (dontstop merge). The base is model.path."""

    kind: Literal["interpolate", "average", "task_arithmetic", "ties", "dare", "residual"] = "interpolate"
    """`interpolate` lies between the base and one model, `average` is the mean of several, such as the checkpoints of a
    run; `task_arithmetic`, `ties` and `dare` add up what several models learnt beyond the base; `residual` adds to the
    first model, an adapted base, what the second, an instruct model of the same base, learnt
    (docs/guide/merging.md)."""
    models: list[str] = how_list()
    """Ids or folders of models with the architecture and the vocabulary of the base; in a chain file also names of
    stages, such as `dapt[cs]`. `average` also takes checkpoints of trainings (…/checkpoints/…/step-…)."""
    shares: list[float] | None = None
    """How far to go from the base (0) to what the kind makes of the models (1), a model for each share; null is 0.5 for
    `interpolate`, 0.4 for `task_arithmetic` and `dare`, 1 for the others."""
    weights: list[float] | Literal["linear", "cosine", "sqrt"] | None = None
    """A weight for each model; null is the same for all. `task_arithmetic` and `dare` add as much of each model; `ties`
    and `average` divide by their sum. For `average` over a window, the oldest first, `linear`, `cosine` and `sqrt` are
    the weights that stand for such a decay of the learning rate; the same for all is the linear decay."""
    density: Fraction | None = None
    """`ties` and `dare`: share of each model's differences from the base that is kept; null is 0.2 for `ties` (the
    largest ones) and 0.1 for `dare` (random ones, by `seed`)."""
    extrapolate: bool = False
    """Whether shares may lie outside of 0 to 1."""


@dataclass(frozen=True)
class VocabularyConfig:
    """The model's tokens and the words of a domain (dontstop vocabulary), which are those of the corpus."""

    action: Literal["analyze", "extend", "trim", "scratch"] = how("analyze")
    """What is done: `analyze` measures how the tokenizer breaks the domain's words, and what more tokens would save;
    `extend` makes a model and a tokenizer that have some of the words as tokens; `trim` makes those that lack the
    tokens which neither the corpus nor general text (evaluation.general_paths) uses; `scratch` trains a tokenizer on
    the corpus, of the kind of model.path's, and makes a model of random weights. The first word after
    dontstop vocabulary stands for it."""
    size: PositiveInt | Literal["elbow"] | None = None
    """`extend`: number of words that become tokens; `elbow` is where a further one saves less than the mean of all
    candidates; null is 1% of the vocabulary. `scratch`: tokens of the tokenizer, at most; null is as many as
    model.path's has."""
    candidates: str = "saved"
    """`extend`: `saved` takes the words first that save most pieces (how often they come, times the pieces beyond the
    first), `divergence` beginnings of words whose last piece follows the others more often than in general text
    (evaluation.general_paths; arXiv 2109.07460), `trained` pieces of a tokenizer of the same kind that is trained on
    the corpus; anything else is a file with a word a line, which all become tokens."""
    init: Literal["mean_subword", "normal", "zero_logit", "distill", "omp"] = "mean_subword"
    """`extend`: the rows that new tokens begin with: `mean_subword` the mean of their old pieces' rows, `normal` draws
    with the mean and deviation of all rows, `zero_logit` zeros, so that their first logits are 0; `distill` begins with
    the mean, and then learns rows that give the text around a new token the hidden states that its old pieces gave it
    (arXiv 2505.20133); `omp` sums of rows of tokens that vocabulary.donor has too, such that the same sums of its rows
    are near what it has for the new tokens (arXiv 2506.06607)."""
    module: Literal["exbert"] | None = None
    """`extend`: what the model gets beside rows. `exbert` puts a smaller layer beside each layer of an encoder, and a
    gate that weighs the two for each token (2020.findings-emnlp.129); freeze.all_but_module trains it alone. null is
    nothing."""
    module_share: OpenFraction = 1 / 3
    """`exbert`: heads and inner neurons of the smaller layers, as a share of those of the model's layers; at least one
    head."""
    donor: str | None = how(None)
    """`omp`: id or folder of a model that knows the domain's words."""
    snippets: PositiveInt = 100
    """`distill`: at most this many places of the corpus are learnt from for each new token."""
    warmup_steps: NonNegativeInt = 0
    """`extend`: steps in which the rows of new tokens alone learn to be predicted and to be read, at last; each of 16
    rows of text, of at most 128 tokens."""
    learning_rate: PositiveFloat = 1e-4
    """Learning rate (AdamW) of `distill` and of `warmup_steps`."""
    min_count: PositiveInt = 5
    """A word becomes a token only if the corpus has it as often."""
    max_megabytes: PositiveFloat = 200.0
    """So much of the corpus is read, from places all over it [MB of text as UTF-8]. Its words are counted in memory."""
    keep: str | None = how(None)
    """`trim`: a text file whose tokens stay, whether the corpus has them or not."""
    dimensions: Literal["tiny", "mini", "small", "medium", "base"] | None = None
    """`scratch`: layers x width of the model: `tiny` 2 x 128, `mini` 4 x 256, `small` 4 x 512, `medium` 8 x 512, `base`
    12 x 768; null is as model.path has them."""


SHARE = 0.01
"""Share of the vocabulary that is added where no size is given."""


def tokens_wanted(size: int | None, vocabulary: int) -> int:
    """How many tokens are added, where that does not hang on the words.

    Args:
        size: `vocabulary.size`, a number or None.
        vocabulary: tokens that there are.
    """
    return max(1, round(SHARE * vocabulary)) if size is None else size


@dataclass(frozen=True)
class TuneConfig:
    """The search for good values of fields, by trials that are measured on dev (docs/guide/sweeps.md)."""

    job: str | None = None
    """The job whose fields are searched, such as `tapt`; null is the job that the file of the space is named after."""
    space: str | None = None
    """The file that says which fields are searched, and between which values: `tune_spaces/tapt.py`, or YAML."""
    searcher: Literal["random", "grid", "tpe"] = "random"
    """How values are proposed: `random` draws them, `grid` takes all combinations of listed values, `tpe` learns from
    the trials before (Optuna's tree-structured Parzen estimator; needs the extra `dontstop[optuna]`)."""
    scheduler: Literal["none", "asha", "median"] = "none"
    """Which trials go on: `none` all of them; with `asha` (asynchronous successive halving) and `median` a trial is
    judged after a part of training.max_steps, and goes on from there if it is among the best, or above the median. This
    needs training.schedule wsd, with training.warmup_steps. Population-based training is left out: it leaves no values
    that a file could hold (docs/guide/sweeps.md)."""
    turns: PositiveInt = 3
    """`asha` and `median`: how often a trial is measured, the last time after training.max_steps."""
    reduction: PositiveInt = 3
    """`asha` and `median`: each turn is so many times as long as the one before; of `asha`, one in so many trials goes
    on."""
    samples: PositiveInt = 16
    """Trials, beside that of the configuration as it is; of `grid`, the most that its combinations may be."""
    objectives: list[str] = field(default_factory=lambda: ["dev_score"])
    """What is to be good: `dev_score`, the mean over all tasks and seeds of fine-tuning, or figures of the job's result
    by name, such as losses.domain.after. With several, the first one decides which trial is best."""
    seed: NonNegativeInt = 0
    """Seed of the proposals."""
    at_once: PositiveInt = how(4)
    """Trials that are under way at once. `tpe` proposes a trial from the results of all trials but the last so many, so
    what it proposes depends on this number, and on nothing that takes time."""
    fresh_seeds: list[int] = field(default_factory=lambda: [1001, 1002, 1003, 1004, 1005])
    """The best trial, and the configuration as it is, are run again with these seeds, and only then tested. An empty
    list leaves this out."""
    budget_device_hours: PositiveFloat | None = None
    """Device-hours that the trials may take: none begins that is expected to go beyond."""
