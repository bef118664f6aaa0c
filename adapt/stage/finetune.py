"""Stage `finetune`: a model, taught a task with one seed, and its scores on the test split."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.better import Less, More
from adapt.config import Config, what
from adapt.model.additions.config import check_parts
from adapt.model.start import Start
from adapt.preflight import check_model, check_weights
from adapt.runner import Done, Outcome, Stage
from adapt.runner.cost import cost_of
from adapt.runner.packages import deciding
from adapt.stage.context import Context
from adapt.stage.task import PrepareTask, task_of

PACKAGES = {"feature_extraction": ("scikit-learn",), "lora": ("peft",)}
"""What decides the scores of a mode beside our own code."""


@dataclass(frozen=True)
class Finetuned:
    """What a run came to; see `adapt.finetune.scores` for the scores. None stands for what a kind of task has not."""

    metric: str
    """Name of the metric that `score` holds."""
    score: More[float]
    score_without_leaks: More[float | None]
    """Over the test examples whose text does not stand in train; None where all or none do."""
    examples: int
    """Examples of the test split."""
    examples_without_leaks: int
    macro_f1: More[float]
    micro_f1: More[float]
    accuracy: More[float]
    per_class: dict[str, dict[str, float]]
    """Precision, recall, f1 and support; of `tokens` by type of entity."""
    ece: Less[float]
    nll: Less[float]
    brier: Less[float]
    reliability: list[dict[str, float]]
    """By bins of confidence."""
    mode: str
    seed: int
    dev_score: More[float]
    majority_score: float
    """Score of always answering the most frequent class of train."""
    degenerate: bool
    """Whether the model predicts one class only."""
    epochs: int
    best_epoch: int | None
    truncated: dict[str, int]
    """Examples that were cut, by split."""
    max_length: int
    """Tokens of an example."""
    trained_parameters: int
    examples_per_s: More[float | None]
    """Train examples a second; None if the mode does not train in steps."""
    seconds: Less[float]
    device_seconds: Less[float]
    transductive: bool
    """Whether the model had been trained on the text of dev and test."""
    confusion: list[list[int]] | None = None
    """`single_label`: the true class in rows."""
    domain: str | None = None
    """Whose parts were used, where the model has some for each domain."""
    nearest_domain: str | None = None
    """The domain that the train split is nearest to, where the model has parts for domains."""
    entity_f1: More[float | None] = None
    precision: More[float | None] = None
    recall: More[float | None] = None
    """`tokens`: of entities."""


@dataclass(frozen=True, eq=False)
class Finetune(Stage[Finetuned]):
    """One run of fine-tuning. The task's own name is not in its record: a name determines nothing."""

    kind = "finetune"

    name: str
    config: Config
    """The configuration; its `task` is the task to learn."""
    start: Start
    task: PrepareTask
    seed: int

    @classmethod
    def of(cls, context: Context, seed: int, task: PrepareTask | None = None) -> "Finetune":
        """The model that a context begins with, on the task of its configuration.

        Args:
            context: of the job.
            seed: of classifier, order and dropout.
            task: where it is known already.
        """
        config = context.config
        if config.finetune.domain and context.start.training is None:
            check_parts(context.start.pretrained.model, config.finetune.domain)
        return cls(f"{config.name}-{seed}", config, context.start, task or task_of(context, config.task), seed)

    def what(self) -> Mapping[str, Any]:
        """Model, settings and seed."""
        finetune = self.config.finetune
        return {
            "model": self.start.digest,
            "attention_dropout": self.config.model.attention_dropout,
            "finetune": what(finetune),
            **({"domain": finetune.domain} if finetune.domain else {}),
            **({"save_model": True} if finetune.save_model else {}),  # one that was not kept is not there
            "seed": self.seed,
            **deciding(*PACKAGES.get(finetune.mode, ())),
        }

    def needs(self) -> Mapping[str, float]:
        """What a run is to have. GPUs are known once there is a cluster: Ray then holds runs back itself."""
        finetune = self.config.finetune
        gpus = {"GPU": finetune.gpus_per_seed} if finetune.gpus_per_seed else {}
        return {"CPU": finetune.cpus_per_seed, **gpus}

    def refuse_early(self) -> None:
        """Looks at the model."""
        check_model(self.start.pretrained, None)

    def run(self, folder: Path, done: Done) -> Outcome[Finetuned]:
        """Writes predictions, the curve, and the model where it is to be kept."""
        from adapt.finetune.run import FinetuneRun, run_finetuning
        from adapt.ray.runtime import connect

        start, resources = self.start.made(done), self.config.resources
        check_weights(start.model)
        connect(resources)
        measured = run_finetuning(FinetuneRun(self.config, start, str(done[self.task].path), self.seed), folder)
        finetuned = Finetuned(**measured, transductive=self.start.knows(done))
        cost = cost_of(finetuned.device_seconds, resources.price_per_device_hour)
        return Outcome(finetuned, cost, {"micro_batch": self.config.finetune.passing})
