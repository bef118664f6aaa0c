"""Classifies a training run by its tokens per parameter and its repeats of each text, and recommends settings.

Each recommendation has its source, and names the models on which it was tested. Most published results are for decoders
that were trained from scratch. `dontstop advise` computes the regime from samples, `dontstop chain plan` from prepared
text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from adapt.config import Config
from adapt.show.blocks import Block, Cell, Table, TextBlock

Size = Literal["small", "limited", "ample"]
AMPLE, LIMITED = 20.0, 1.0
"""A corpus counts as ample with at least AMPLE tokens per parameter, as limited with at least LIMITED tokens per
parameter, and otherwise as small. Below 20, a decoder that is trained from scratch is limited by text and not by
compute (Hoffmann et al., arXiv 2203.15556). arXiv 2509.14786 trains with about 1 token per parameter (200 M tokens),
and finds that settings for ample text do not work there."""
AS_NEW, IN_VAIN = 4.0, 16.0
"""Repeated text is worth about as much as new text up to AS_NEW passes, and adds little after IN_VAIN passes (arXiv
2305.16264)."""
MIXED = 20.0
"""Number of times that scarce text, mixed with general text, can be read without harm (arXiv 2605.12715 finds
15-20)."""
LEAST_DECAY, DECAY_TRIED = 0.1, 0.3
"""Weight decay below which a trial with a larger weight decay is recommended (DECAY_TRIED). The trial starts at
LEAST_DECAY, or at DECAY_TRIED if the weight decay is already LEAST_DECAY or more."""
SEARCH = "dontstop chain run small_corpus"
"""The command that searches for the settings that are recommended here."""


@dataclass(frozen=True)
class Recommendation:
    """A recommendation for one setting."""

    setting: str
    advice: str
    source: str
    tested: str
    """Text that names the kinds of models on which the recommendation was tested, and on which it was not tested."""


@dataclass(frozen=True)
class Regime:
    """Sizes of the texts of a training run, compared with the model, and how often each text is read."""

    parameters: int
    """Number of parameters of the model."""
    tokens: int
    """Number of training tokens in the domain's text, without repeated passes."""
    passes: float | None
    """Number of times that the domain's text is read; None if the training length is not known."""
    general_passes: float | None = None
    """Number of times that replayed general text is read; None if there is no such text or its size is not known."""
    general_share: float = 0.0
    """Share of the training rows that are general text."""

    @property
    def per_parameter(self) -> float:
        """Number of tokens of the domain's text per parameter of the model, without repeated passes."""
        return self.tokens / max(self.parameters, 1)

    @property
    def size(self) -> Size:
        """Class of the domain's text for this model: ample, limited or small."""
        return "ample" if self.per_parameter >= AMPLE else "limited" if self.per_parameter >= LIMITED else "small"

    def sentence(self) -> str:
        """Returns a sentence with the number of tokens per parameter, and how often each text is read."""
        said = (
            f"Regime: {self.size} text, {self.per_parameter:.2g} tokens of the domain per parameter"
            f" ({self.tokens:,} tokens, {self.parameters / 1e6:,.1f} M parameters)"
        )
        if self.passes is not None:
            said += f"; each of these tokens is read {_number(self.passes)} times"
        if self.general_passes is not None:
            rows = f"{self.general_share:.0%} of the rows"
            said += f", each token of general text {_number(self.general_passes)} times ({rows})"
        return f"{said}."

    def recommendations(self, config: Config) -> list[Recommendation]:
        """Returns recommendations for weight decay, epochs, general text and seeds; empty for ample text."""
        if self.size == "ample":
            return []
        return [*self._decay(config), *self._epochs(config), *self._general(config), _MANY_TO_ONE]

    def shown(self, found: Sequence[Recommendation]) -> list[Block]:
        """Returns the sentence about the regime and a table of the recommendations `found`, for display."""
        rows: list[list[Cell | str]] = [[each.setting, each.advice, each.source, each.tested] for each in found]
        header = ["setting", "recommendation", "source", "tested on"]
        title = "Recommendations for this amount of text"
        table = [Table(header, rows, title, f"Search these settings together: {SEARCH}.", words=True)] if rows else []
        return [TextBlock(self.sentence()), *table]

    def _decay(self, config: Config) -> list[Recommendation]:
        decay = config.training.weight_decay
        if decay >= DECAY_TRIED or (self.passes is not None and self.passes <= 1):
            return []
        least = LEAST_DECAY if decay < LEAST_DECAY else DECAY_TRIED
        tested = "decoders from scratch"
        if config.objective.kind != "causal":
            tested += "; small encoder, 1 to 10 MB: 0.2 equalled 0.01, 1 was worse (docs/guide/small-corpora.md)"
        return [
            Recommendation(
                "weight decay",
                f"try {least:g} to 3 instead of {decay:g} (training.weight_decay)",
                "arXiv 2509.14786: with few tokens and many epochs, 30 times the usual 0.1 is best; arXiv 2605.01640: a"
                " weight decay of 1 reduces overfitting by 70%",
                tested,
            )
        ]

    def _epochs(self, config: Config) -> list[Recommendation]:
        """Returns a recommendation on the number of passes over the domain's text."""
        most = MIXED if self.general_share else IN_VAIN
        if self.passes is None:
            now = "set training.epochs; "
        elif self.passes < AS_NEW:
            now = f"{_number(self.passes)} passes are few: "
        elif self.passes <= most:
            now = f"{_number(self.passes)} passes are within the useful range: "
        else:
            now = f"{_number(self.passes)} passes are many: compare with fewer, and measure while training "
            now += "(evaluation.interval_steps); "
        if self.general_share:
            advice = f"{now}mixed with general text, 15 to 20 repeats of scarce text did no harm"
            source = "arXiv 2605.12715, more than 2,000 runs"
        else:
            advice = f"{now}up to 4 passes are worth almost as much as new text, and more than 16 add little"
            source = "arXiv 2305.16264"
        tested = "decoders from scratch"
        if config.objective.kind != "causal":
            tested += "; encoders, whose masks differ in each pass: 100 passes over task text (TAPT, arXiv 2004.10964)"
        return [Recommendation("epochs", advice, source, tested)]

    def _general(self, config: Config) -> list[Recommendation]:
        if self.general_share:
            text = "general text is in the mixture: compare shares (mixture.replay_fraction), up to a quarter"
        else:
            if config.objective.kind == "causal":
                without = "let the model write some (mixture.replay_kind self)"
            else:
                without = "stay near the model's own predictions (method.kind distill): generated text did not help"
            text = (
                "mix in general text (mixture.replay_paths): then the domain's text can be repeated more often. Without"
                f" general text, {without}"
            )
        return [
            Recommendation(
                "share of general text",
                text,
                "arXiv 2605.12715; our searches: beyond a quarter, loss on general text falls by less than 0.1 nats"
                " (docs/science/searches.md); without general text: arXiv 2605.26097 and docs/science/forgetting.md",
                "decoders from scratch; our searches: small encoders; without general text: a small model of each kind",
            )
        ]


def _number(value: float) -> str:
    """Formats a number below 10 with two significant digits, and a larger number without decimals."""
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


_MANY_TO_ONE = Recommendation(
    "several seeds",
    "average the weights (dontstop merge) or the predictions of several seeds (dontstop ensemble), or distil the"
    " ensemble into one model (dontstop distil)",
    "arXiv 2509.14786: the ensemble is better than any single model; a student of an eighth of the ensemble's size"
    " keeps 83% of the gain",
    "decoders from scratch; a small encoder on 1 to 10 MB, where averaged weights kept 73% of the ensemble's gain"
    " and a student 43% (docs/guide/small-corpora.md)",
)
