"""ELLE (Qin et al. 2022, arXiv 2203.06311): room for each domain, and a look back.

Before a domain the model grows in width and depth. The first steps of the training, in which text of the domains before
comes alone, recover what growth has lost; of the others a share replays it. These steps take the place of steps on the
domain, so a training is as long as with any method. A prompt before each document says its domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, Fraction, NonNegativeFloat, NonNegativeInt
from adapt.method.base import Added, Domain, Method, Setting, TrainingEngine
from adapt.method.domain_parameters import enter_sets
from adapt.method.elle.growth import Growth, check_growths, check_prompts
from adapt.model.architecture import PROMPTS, check_units
from adapt.model.size import ModelSize
from adapt.support.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.elle.past_text import PastText
    from adapt.objective.objective import Corrupted, Objective
    from adapt.runner import Stage

TEXT = "text of domain "
"""What the method calls the prepared text of a domain before; its number follows."""


@dataclass(frozen=True)
class ElleOptions:
    """ELLE: the model grows before each domain, recovers on past text, and replays it (arXiv 2203.06311)."""

    layers: list[int] = field(default_factory=lambda: [2, 2, 1, 1])
    """How many layers are added before the first domain, the second, and so on; none after the list's end. At most as
    many as the model has."""
    heads: list[int] = field(default_factory=lambda: [2, 2, 1, 1])
    """How many attention heads each layer gets before the first domain, the second, and so on; none after the list's
    end. The width of states and of feed-forward layers grows in proportion. The model computes the same where the width
    is a whole multiple of what it was."""
    new_layers: Literal["silent", "copies"] = "silent"
    """What a new layer starts as. `silent`: a copy of the one below it, its output projections 0 so that the model
    computes the same. `copies`: the copy as it is, as published; the model then computes something else."""
    noise: NonNegativeFloat = 0.01
    """Standard deviation of what is added to the weights that make copied units of the layers: equal units would learn
    alike. With 0, dropout alone tells them apart."""
    recovery_fraction: Fraction = 0.08
    """Share of the steps of a training, its first, that see text of the domains before alone, to recover what growth
    has lost: 5,000 beside 62,500, as published. Without a domain before there are none."""
    replay_fraction: Fraction = 0.1
    """Share of the other steps whose rows are all of one of the domains before. The more its loss has fallen of late,
    the more often a domain is drawn."""
    prompt_length: NonNegativeInt = 1
    """Vectors before each document of a domain, which are given again when the model is fine-tuned: a token that says
    the domain, as published. They take positions, so that the model takes so many tokens less. 0 for none."""


class Elle(Method):
    """Grows the model, and replays past text."""

    Options = ElleOptions
    kind: ClassVar[str] = "elle"

    def __init__(self, options: ElleOptions) -> None:
        super().__init__(options)
        self.options: ElleOptions = options
        self.by_domain = bool(options.prompt_length)
        self.depends_on_length = bool(options.recovery_fraction)
        self._names: list[str] = []
        self._setting = Setting()
        self._past: PastText | None = None

    def check(self, config: Config, model: Path) -> None:
        """Refuses models that cannot grow so.

        Raises:
            ConfigError: the options ask for what cannot be added.
            ModelError: its layers are not known, or it has additions other than prompts of domains.
        """
        check_units(model)
        check_prompts(config, model, self.options.prompt_length)
        domains = max(len(self.options.layers), len(self.options.heads))
        check_growths(model, [self._growth(number) for number in range(1, domains + 1)])

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        """The text of the domain, for the trainings after it."""
        known = sum(name.startswith(TEXT) for name in learnt.past)
        return {f"{TEXT}{number}": text for number, text in enumerate(learnt.texts, start=known + 1)}

    def _growth(self, number: int | None) -> Growth:
        return Growth.before(number or 1, self.options.layers, self.options.heads)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        """The size after the growth of all of them."""
        for number in trainings:
            size = self._growth(number).resized(size)
        return size

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """The larger model.

        Raises:
            DataError: a domain before has no text.
        """
        from adapt.method.elle.grown_model import grown, take_prompt
        from adapt.method.elle.past_text import PastText

        self._setting, options = setting, self.options
        if folders := {name: folder for name, folder in setting.past.items() if name.startswith(TEXT)}:
            self._past = PastText(folders, setting.seed)
            if empty := self._past.without_text():
                raise DataError(f"{empty} has no text to replay", "give that domain more text, or use another method")
        growth, seed = self._growth(setting.number), setting.seed + (setting.number or 1)
        if growth != Growth():
            model = grown(model, growth, options.new_layers == "silent", options.noise, seed)
        if options.prompt_length:
            self._names, prompts = take_prompt(model, setting, options.prompt_length, folders)
            if self._past:
                self._past.use_prompts(self._names.index(setting.domain), prompts)
        return model

    def resize(self, config: Any) -> None:
        """Says how large the model is now, and which prompts there are."""
        self._growth(self._setting.number).resize(config)
        if self._names:
            enter_sets(config, PROMPTS, self._names, {"length": self.options.prompt_length})

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """The prompt passes the layers with every document."""
        return Added(per_document=self.options.prompt_length)

    def begin(self, engine: TrainingEngine) -> None:
        """Forgets what a trial of the memory has replayed."""
        if self._past:
            self._past.forget_steps()

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Those of the domain's rows, or of as many rows of a domain before."""
        if not (self._past and self._replays(step)):
            yield from super().losses(model, parts, objective, step, predictions)
        else:
            yield from self._past.passes(model, parts, objective, step, predictions)

    def _replays(self, step: int) -> bool:
        """Whether a step sees past text."""
        recovery = self.options.recovery_fraction
        if recovery and step < round(recovery * self._setting.steps):
            return True
        return bool(self._past and self._past.is_drawn(step, self.options.replay_fraction))

    def after_step(self, engine: TrainingEngine, step: int) -> None:
        """Notes the loss on what was replayed, where the device has been waited for already."""
        if self._past:
            self._past.note_step()

    def report(self) -> dict[str, float]:
        """How many steps have replayed past text since the last report."""
        return {"replayed_steps": float(self._past.steps_since() if self._past else 0)}

    def state(self) -> dict[str, Any]:
        """The losses by which domains are drawn."""
        return {"losses": self._past.losses} if self._past else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Those of the checkpoint."""
        if self._past and state:
            self._past.losses = dict(state["losses"])
