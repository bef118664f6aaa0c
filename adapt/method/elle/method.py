"""Training method ELLE (Qin et al. 2022, arXiv 2203.06311): the model grows and replays text of earlier domains.

Before a domain the model grows in width and depth. The first steps of the training use only text of earlier domains, to
recover what growth has lost. Later, a share of the steps also replays text of earlier domains. All these steps replace
steps on the new domain, so a training run has as many steps as with any other method. A prompt before each document
tells the model the document's domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, Fraction, NonNegativeInt
from adapt.method.base import Added, Domain, Method, Setting, TrainingEngine
from adapt.method.domain_parameters import enter_sets
from adapt.method.elle.growth import Growth, check_growths, check_prompts
from adapt.model.architecture import PROMPTS, check_units
from adapt.model.size import ModelSize
from adapt.support.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.elle.past_text import PastText
    from adapt.objective.objective import Corrupted, Objective
    from adapt.runner import Stage

NOISE = 0.01
"""Standard deviation of the noise on the weights that produce copied units, because equal units would learn the
same."""
TEXT = "text of domain "
"""Prefix of the names under which the method stores the prepared text of domains. The domain's number follows."""


@dataclass(frozen=True)
class ElleOptions:
    """Options of ELLE: the model grows before each domain, and replays past text (arXiv 2203.06311).

    A new layer is a copy of the layer below with output projections 0, so that the model's outputs stay the same. In
    the paper, new layers are unchanged copies.
    """

    earlier: ClassVar[Mapping[str, Any]] = {"new_layers": "silent", "noise": NOISE}
    layers: list[int] = field(default_factory=lambda: [2, 2, 1, 1])
    """Number of layers that are added before the first domain, the second, and so on; 0 after the list's end. A domain
    can at most double the model's number of layers."""
    heads: list[int] = field(default_factory=lambda: [2, 2, 1, 1])
    """Number of attention heads that each layer gets before the first domain, the second, and so on; 0 after the list's
    end. The width of states and feed-forward layers grows in proportion. The model's outputs stay the same if the new
    width is a whole multiple of the old width."""
    recovery_fraction: Fraction = 0.08
    """Share of steps, at the start of a training run, that use only text of earlier domains, to recover what growth has
    lost. Published: 5,000 of 62,500 steps. The first domain has no such steps."""
    replay_fraction: Fraction = 0.1
    """Share of the steps after recovery in which all rows come from one earlier domain. The more a domain's loss has
    fallen recently, the more often the domain is drawn."""
    prompt_length: NonNegativeInt = 1
    """Number of vectors before each document, learnt per domain and used again in fine-tuning (published: one token
    that names the domain). The model accepts this many fewer tokens of text. 0 means no prompts."""


def domain_names(config: Config) -> list[str]:
    """Returns the domains of a sequence in the order of learning. The list is empty in jobs other than sequences."""
    names = [source.name for source in config.corpus.sources]
    return [name for name in config.sequence.order or names if name in names]


class Elle(Method):
    """Grows the model before each domain, and replays text of earlier domains."""

    Options = ElleOptions
    kind: ClassVar[str] = "elle"

    def __init__(self, options: ElleOptions) -> None:
        super().__init__(options)
        self.options: ElleOptions = options
        self.by_domain = self.adds_modules = bool(options.prompt_length)
        self.depends_on_length = bool(options.recovery_fraction)
        self._names: list[str] = []
        self._setting = Setting()
        self._past: PastText | None = None

    def check(self, config: Config, model: Path) -> None:
        check_units(model)
        check_prompts(config, model, self.options.prompt_length)
        self._check_spikes(config)
        domains = max(len(self.options.layers), len(self.options.heads))
        check_growths(model, [self._growth(number) for number in range(1, domains + 1)])

    def _check_spikes(self, config: Config) -> None:
        """Refuses `training.on_spike` if steps may replay text, because an earlier domain has another loss."""
        replays = self.options.recovery_fraction or self.options.replay_fraction
        if config.training.on_spike and replays and len(domain_names(config)) > 1:
            raise ConfigError(
                f"training.on_spike is {config.training.on_spike}, but some steps of method.kind elle replay earlier"
                " domains, whose loss differs from the loss on the new domain, so these steps may look like spikes",
                "leave training.on_spike out, or set elle.recovery_fraction and elle.replay_fraction to 0",
            )

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        """Returns the domain's prepared text, because later training runs replay it."""
        known = sum(name.startswith(TEXT) for name in learnt.past)
        return {f"{TEXT}{number}": text for number, text in enumerate(learnt.texts, start=known + 1)}

    def _growth(self, number: int | None) -> Growth:
        return Growth.before(number or 1, self.options.layers, self.options.heads)

    def trained_size(self, size: ModelSize, trainings: range) -> ModelSize:
        for number in trainings:
            size = self._growth(number).resized(size)
        return size

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        from adapt.method.elle import grown_model, past_text  # imported here, because they load torch

        self._setting, options = setting, self.options
        if folders := {name: folder for name, folder in setting.past.items() if name.startswith(TEXT)}:
            self._past = past_text.PastText(folders, setting.seed)
            if empty := self._past.without_text():
                raise DataError(f"{empty} has no text to replay", "give that domain more text, or use another method")
        growth, seed = self._growth(setting.number), setting.seed + (setting.number or 1)
        if growth != Growth():
            model = grown_model.grown(model, growth, NOISE, seed)
        if options.prompt_length:
            self._names, prompts = grown_model.take_prompt(model, setting, options.prompt_length, folders)
            if self._past:
                self._past.use_prompts(self._names.index(setting.domain), prompts)
        return model

    def resize(self, config: Any) -> None:
        self._growth(self._setting.number).resize(config)
        if self._names:
            enter_sets(config, PROMPTS, self._names, {"length": self.options.prompt_length})

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        return Added(per_document=self.options.prompt_length)

    def begin(self, engine: TrainingEngine) -> None:
        """Resets the counts of replayed steps after a trial of the memory use."""
        if self._past:
            self._past.forget_steps()

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        if not (self._past and self._replays(step)):
            yield from super().losses(model, parts, objective, step, predictions)
        else:
            yield from self._past.passes(model, parts, objective, step, predictions)

    def _replays(self, step: int) -> bool:
        """Returns whether a step trains on text of an earlier domain."""
        recovery = self.options.recovery_fraction
        if recovery and step < round(recovery * self._setting.steps):
            return True
        return bool(self._past and self._past.is_drawn(step, self.options.replay_fraction))

    def after_step(self, engine: TrainingEngine, step: int) -> None:
        """Records the loss on replayed rows. Reading it during the step would make the CPU wait for the device."""
        if self._past:
            self._past.note_step()

    def report(self) -> dict[str, float]:
        return {"replayed_steps": float(self._past.steps_since() if self._past else 0)}

    def state(self) -> dict[str, Any]:
        return {"losses": self._past.losses} if self._past else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if self._past and state:
            self._past.losses = dict(state["losses"])
