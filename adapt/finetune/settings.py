"""What `null` means in the configuration of fine-tuning, for one mode, task and model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adapt.config import FinetuneConfig, TrainingConfig
from adapt.errors import ConfigError
from adapt.model.additions.config import refuse_additions
from adapt.model.limits import max_sequence_length
from adapt.model.locate import CONFIG, read_json

LEARNING_RATES = {"fine_tune": 2e-5, "lora": 2e-4, "linear_probe": 1e-2, "feature_extraction": 0.0}
"""The default peak learning rate of each mode. `feature_extraction` trains in no steps, so it has none."""
EPOCHS, FEW_EPOCHS = 10, 3
MANY_EXAMPLES = 5000
SAVABLE = {"bert": ("bert.pooler.dense", "classifier"), "roberta": ("classifier.dense", "classifier.out_proj")}
"""Model types whose own classifier is ours, and what they call our head's two layers. For `tokens` both have one,
`classifier`."""


@dataclass(frozen=True)
class FinetuneSettings:
    """The settings of a run, with a value for every field of FinetuneConfig that may be null."""

    finetune: FinetuneConfig
    epochs: int
    pooling: str
    max_length: int
    """Longer examples are cut to this length [tokens]."""

    @classmethod
    def of(cls, finetune: FinetuneConfig, model: Path, causal: bool, examples: int) -> FinetuneSettings:
        """Fills in the fields that are null.

        Args:
            finetune: as configured.
            model: folder.
            causal: whether it is a decoder.
            examples: of the train split.
        """
        longest = max_sequence_length(model)
        return cls(
            finetune,
            finetune.epochs or (FEW_EPOCHS if examples > MANY_EXAMPLES else EPOCHS),
            finetune.pooling or ("last" if causal else "first"),
            min(finetune.max_length, longest or finetune.max_length),
        )

    @property
    def optimization(self) -> TrainingConfig:
        """Learning rate, decay and warm-up, in the form that pre-training has them."""
        return TrainingConfig(
            learning_rate=self.finetune.learning_rate or LEARNING_RATES[self.finetune.mode],
            warmup_fraction=self.finetune.warmup_fraction,
            weight_decay=self.finetune.weight_decay,
        )


def check_savable(settings: FinetuneSettings, model: Path, kind: str) -> None:
    """Refuses `save_model` where transformers has no classifier that computes what ours does.

    Raises:
        ConfigError: another mode, pooling or architecture.
        ModelError: the model carries what transformers would leave out.
    """
    refuse_additions(model, "fine-tuned with finetune.save_model")
    family, mode = read_json(model / CONFIG).get("model_type", ""), settings.finetune.mode
    if mode != "fine_tune":
        raise ConfigError(
            f"finetune.save_model works with finetune.mode fine_tune, not with {mode}",
            "leave finetune.save_model off, or set finetune.mode to fine_tune",
        )
    if family not in SAVABLE or (kind != "tokens" and settings.pooling != "first"):
        pooled = "" if family not in SAVABLE else f" with finetune.pooling {settings.pooling}"
        raise ConfigError(
            f"finetune.save_model: transformers has no classifier like ours for model type {family!r}{pooled}",
            f"leave finetune.save_model off, or use {' or '.join(sorted(SAVABLE))} and finetune.pooling first",
        )
