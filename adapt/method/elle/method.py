"""ELLE (Qin et al. 2022, arXiv 2203.06311): room for each domain, and a look back.

Before a domain the model grows in width and depth. The first steps of the training, in which text of the domains before
comes alone, recover what growth has lost; of the others a share replays it. These steps take the place of steps on the
domain, so a training is as long as with any method. A prompt before each document says its domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config
from adapt.method.base import Added, Domain, Method, Setting, TrainingEngine
from adapt.method.domain_parameters import enter_sets
from adapt.method.elle.growth import Growth, check_growths, check_prompts, idle_loss, take_prompt
from adapt.method.elle.options import ElleOptions
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
REPLAYS = 0x0E11E
"""Tells the draw of what is replayed from all else that is drawn by (seed, step)."""


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
        self._prompts: dict[str, int] = {}  # of past text
        self._setting = Setting()
        self._past: PastText | None = None
        self._replayed: tuple[str, Tensor, int] | None = None  # of this step: domain, this rank's loss, predictions
        self._steps = 0  # that replayed, since the last report

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
        from adapt.method.elle.grown_model import grown
        from adapt.method.elle.past_text import PastText

        self._setting, options = setting, self.options
        if folders := {name: folder for name, folder in setting.past.items() if name.startswith(TEXT)}:
            self._past = PastText(folders)
            if empty := self._past.without_text():
                raise DataError(f"{empty} has no text to replay", "give that domain more text, or use another method")
        growth, seed = self._growth(setting.number), setting.seed + (setting.number or 1)
        if growth != Growth():
            model = grown(model, growth, options.new_layers == "silent", options.noise, seed)
        if options.prompt_length:
            self._names, self._prompts = take_prompt(model, setting, options.prompt_length, folders)
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
        self._replayed, self._steps = None, 0

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Those of the domain's rows, or of as many rows of a domain before."""
        if not (self._past and self._replays(step)):
            yield from super().losses(model, parts, objective, step, predictions)
            return
        from adapt.method.collectives import counted

        rows, length = sum(len(part.input_ids) for part in parts), parts[0].input_ids.shape[1]
        counts, rank = counted(rows)
        share, address = slice(rank, None, len(counts)), (self._setting.seed ^ REPLAYS, step)
        name, batch = self._past.rows(sum(counts), share, length, objective.columns(), address)
        corrupted = objective.corrupt(batch).bound_for(parts[0].device)
        asked = max(sum(counted(len(corrupted.targets))[0]), 1)
        total: Any = 0.0
        with self._prompt_of(model, name):
            for part in corrupted.split(len(parts[0].input_ids)):
                loss = objective.loss(model, part)
                total = total + loss.detach()
                self._replayed = name, total, asked
                # the caller divides by the predictions of the domain's rows
                yield loss * (predictions / asked), self._idle(model)

    @contextmanager
    def _prompt_of(self, model: nn.Module, name: str) -> Iterator[None]:
        """Inside the block documents have the prompt of past text, if it has one."""
        if not self._names:
            yield
            return
        from adapt.model.additions.domain_modules import choose_set

        choose_set(model, self._prompts.get(name))
        try:
            yield
        finally:
            choose_set(model, self._own)

    def _idle(self, model: nn.Module) -> Tensor | None:
        """What keeps the domain's own prompt a part of a step that does not see it."""
        return idle_loss(model, self._own) if self._names else None

    @property
    def _own(self) -> int:
        return self._names.index(self._setting.domain)

    def _replays(self, step: int) -> bool:
        """Whether a step sees past text."""
        import numpy as np

        recovery = self.options.recovery_fraction
        if recovery and step < round(recovery * self._setting.steps):
            return True
        draw = np.random.default_rng([self._setting.seed % 2**64, step, REPLAYS])
        return bool(draw.random() < self.options.replay_fraction)

    def after_step(self, engine: TrainingEngine, step: int) -> None:
        """Notes the loss on what was replayed, where the device has been waited for already."""
        if self._past and self._replayed:
            from adapt.method.collectives import summed

            name, total, asked = self._replayed
            self._past.note(name, summed(total).item() / asked)
            self._steps += 1
        self._replayed = None

    def report(self) -> dict[str, float]:
        """How many steps have replayed past text since the last report."""
        steps, self._steps = self._steps, 0
        return {"replayed_steps": float(steps)}

    def state(self) -> dict[str, Any]:
        """The losses by which domains are drawn."""
        return {"losses": self._past.losses} if self._past else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Those of the checkpoint."""
        if self._past and state:
            self._past.losses = dict(state["losses"])
