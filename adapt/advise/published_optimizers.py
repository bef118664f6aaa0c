"""Lists the optimizer settings with which families of models were pre-trained."""

from dataclasses import dataclass

from adapt.config import TrainingConfig


@dataclass(frozen=True)
class Pretraining:
    """The optimizer settings with which a family of models was pre-trained, as published."""

    optimizer: str
    beta1: float
    beta2: float
    epsilon: float
    source: str

    def differences(self, training: TrainingConfig) -> list[str]:
        """Returns the options that set the published values, one for each setting in which `training` differs."""
        published = {name: getattr(self, name) for name in ("optimizer", "beta1", "beta2", "epsilon")}
        return [f"--training.{name} {value}" for name, value in published.items() if value != getattr(training, name)]


PRETRAINED = {
    "bert": Pretraining("adamw", 0.9, 0.999, 1e-6, "arXiv 1810.04805, section A.2, and its code"),
    "distilbert": Pretraining("adamw", 0.9, 0.98, 1e-6, "the code of arXiv 1910.01108"),
    **dict.fromkeys(("deberta", "deberta-v2"), Pretraining("adamw", 0.9, 0.999, 1e-6, "arXiv 2006.03654 and its code")),
    "electra": Pretraining("adamw", 0.9, 0.999, 1e-6, "arXiv 2003.10555 and its code"),
    "roberta": Pretraining("adamw", 0.9, 0.98, 1e-6, "arXiv 1907.11692, table 9"),
    "modernbert": Pretraining("stable_adamw", 0.9, 0.98, 1e-6, "arXiv 2412.13663, table 3"),
    "llama": Pretraining("adamw", 0.9, 0.95, 1e-5, "arXiv 2307.09288, section 2.2"),
    "qwen": Pretraining("adamw", 0.9, 0.95, 1e-8, "arXiv 2309.16609, section 2.4"),
}
"""The published optimizer settings of families of models, keyed by `model_type` in config.json."""
