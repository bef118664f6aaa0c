"""Provides a fixture that fine-tunes a model on a small task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, FinetuneConfig, TrainingConfig
from adapt.finetune.ray_task import RunResult
from adapt.finetune.seed_run import finetune_work
from adapt.model.locate import Pretrained
from tests.finetune.toy import toy

RATES = {"fine_tune": 3e-3, "lora": 1e-2, "linear_probe": 3e-2, "feature_extraction": 1.0}
EPOCHS = {"fine_tune": 8, "lora": 8, "linear_probe": 40, "feature_extraction": 1}

Learn = Callable[..., RunResult]


@pytest.fixture
def learn(tiny_bert: Path, tmp_path: Path) -> Learn:
    """Returns a function that runs a fine-tuning mode on a toy task in this process."""

    def run(kind: str = "single_label", mode: str = "fine_tune", seed: int = 0, **changes: Any) -> RunResult:
        task, folder = tmp_path / f"task-{kind}", tmp_path / "out"
        if not task.exists():
            toy(task, kind)
        settings = {"learning_rate": RATES[mode], "epochs": EPOCHS[mode], "patience": 40, "pooling": "mean"} | changes
        config = Config(training=TrainingConfig(precision="fp32"), finetune=FinetuneConfig(mode=mode, **settings))
        return finetune_work(config, Pretrained(tiny_bert, tiny_bert), task, seed, folder)

    return run
