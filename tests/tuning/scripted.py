"""Fakes a search and its trials. Their results are computed by a function of the tuned values, without training."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adapt.config import Config, TrainingConfig, TuneConfig
from adapt.evaluate.measurements import Estimate
from adapt.runner import Done, Outcome, Stage, Store
from adapt.support.errors import DeviceMemoryError
from adapt.tuning.job_trial import TrialMeasured
from adapt.tuning.search_stage import Search, TrialRow

Objective = Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True, eq=False)
class Scripted(Stage[TrialMeasured]):
    """A fake trial whose score is computed by `objective`. Each run appends a line to the file `notes`."""

    kind = "trial"

    name: str
    values: Mapping[str, Any]
    objective: Objective
    micro_batch: int
    fitting: int
    """Largest micro-batch that fits in the memory of the fake device [sequences]."""
    notes: Path
    runs: Mapping[str, Any] = field(default_factory=dict)

    def what(self) -> Mapping[str, Any]:
        return {"values": dict(self.values)}

    def needs(self) -> Mapping[str, float]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[TrialMeasured]:
        with self.notes.open("a") as notes:
            notes.write(f"{self.key[:8]}\n")
        if self.micro_batch > self.fitting:
            what = f"a device ran out of memory with {self.micro_batch} sequences per pass"
            raise DeviceMemoryError(what, "take fewer", self.micro_batch)
        return Outcome(TrialMeasured({"dev_score": Estimate(self.objective(self.values))}))


@dataclass
class ScriptedSearch:
    """A fake search with the attributes and methods that `adapt.tuning.run_trials` uses."""

    objective: Objective
    notes: Path
    tune: TuneConfig = field(default_factory=TuneConfig)
    fitting: int = 64
    key: str = "0" * 64
    inputs: Mapping[str, Stage[Any]] = field(default_factory=dict)
    space: str = "space.yaml"
    job: Any = field(default_factory=lambda: SimpleNamespace(name="finetune"))

    @property
    def directions(self) -> dict[str, str]:
        return dict.fromkeys(self.tune.objectives, "max")

    @property
    def config(self) -> Config:
        training = TrainingConfig(global_batch_size=16, micro_batch=8)
        return replace(Config(), name="scripted", tune=self.tune, training=training)

    @property
    def figures_needed(self) -> list[str]:
        return self.tune.objectives

    def excess(self, row: TrialRow) -> float | None:
        return 0.0 if row.figures else None

    def configure(self, values: Mapping[str, Any]) -> Config:
        return self.config

    def finalists(self, rows: Iterable[TrialRow]) -> list[TrialRow]:
        return Search.finalists(self, rows)  # type: ignore[arg-type]

    def _rank(self, row: TrialRow) -> tuple[float, float, int]:
        return Search._rank(self, row)  # type: ignore[arg-type]

    def finalist_hours(self, store: Store) -> float:
        return 0.0

    def trial(self, values: Mapping[str, Any], turn: int = -1, is_finalist: bool = False) -> Any:
        own = {name: value for name, value in values.items() if name != "training.micro_batch"}
        own |= {"finalist": 1} if is_finalist else {}
        sequences = int(values.get("training.micro_batch", 8))
        return Scripted("scripted", own, self.objective, sequences, self.fitting, self.notes)
