"""The vocabulary: what a domain's words are broken into, and what is changed about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapt.config.fields import NonNegativeInt, OpenFraction, PositiveFloat, PositiveInt, how


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
