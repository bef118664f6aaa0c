"""What the benchmark of DAS's cost runs: a training step, plain or DAS, and a batch of the importance pass."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapt.config import Config, MethodConfig, TrainingConfig
from adapt.method.das.options import DasOptions
from benchmarks.texts import Case, build_model, tokenizer_of

if TYPE_CHECKING:
    from adapt.train.loop import Loop

Training = Literal["plain", "exact", "lean", "economy"]
"""Without a method, or DAS at some cost of its contrast."""
Work = Callable[[int, dict[str, Any]], Any]
"""Takes a number and the columns of some rows, and works on them."""


def config_of(case: Case, training: Training) -> Config:
    """The configuration of a job that trains in this way."""
    settings = TrainingConfig(global_batch_size=case.rows, sequence_length=case.length, learning_rate=1e-4)
    if training == "plain":
        return Config(training=settings)
    return Config(training=settings, method=MethodConfig("das"), method_options=DasOptions(contrast_cost=training))


def step_of(case: Case, training: Training, steps: int) -> Work:
    """An optimizer step of a model of its own, which takes so many."""
    loop = _loop(case, training, steps)
    return lambda number, columns: loop.step(columns, number, loop.training.learning_rate)


def _loop(case: Case, training: Training, steps: int) -> Loop:
    from adapt.method.base import Setting
    from adapt.method.table import method_of
    from adapt.objective.build import make
    from adapt.train.loop import Loop
    from adapt.train.options import apply_options
    from adapt.train.precision import resolve

    config, (model, device) = config_of(case, training), _model(case)
    method, rows = method_of(config), case.micro_batch or case.rows
    with tempfile.TemporaryDirectory() as folder:
        method.prepare_model(model, Setting(past=_random_importance(model, Path(folder))))
    apply_options(model.train().to(device), config.training, device)
    precision, passes = resolve("auto", device), case.rows // rows
    engine: Any
    if importlib.util.find_spec("deepspeed"):
        from adapt.train.engine import Engine

        engine = Engine(model, config.training, 0, precision, rows, passes)
    else:
        from benchmarks.plain import PlainEngine

        engine = PlainEngine(model, config.training, precision, passes)
    objective = make(config.objective, tokenizer_of(case), config.seed)
    return Loop(engine, objective, method, config.training, rows, steps, config.seed)


def _model(case: Case) -> tuple[Any, Any]:
    """A model as jobs load it, and the device it is for."""
    import torch

    from adapt.model.apart import keep_documents_apart

    model = build_model(case).eval()
    keep_documents_apart(model)
    return model, torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _random_importance(model: Any, folder: Path) -> Mapping[str, Path]:
    """What the stage before a training leaves behind."""
    import torch

    from adapt.method.das.importance import Importance, save_importance
    from adapt.method.das.normalize import normalize, random_sizes

    units = normalize(random_sizes(model, 0), "paper")
    save_importance(Importance(units, None, torch.zeros(0, dtype=torch.int64)), model, folder)
    return {"importance": folder}


def importance_batches(case: Case, most: int) -> dict[str, Work]:
    """A batch of the importance pass as the stage takes it, about `general` knowledge and a `domain`.

    Args:
        case: says the model, and what rows are.
        most: of the columns' rows are in the batch.
    """
    from adapt.model.layers.units import Gates
    from adapt.model.packing.dropout import use_quick_dropout

    model, device = _model(case)
    if device.type == "cpu":
        use_quick_dropout(model)
    gates = Gates(model.to(device))
    return {
        "general": _batch(case, gates, model, "general", most),
        "domain": _batch(case, gates, model, "domain", most),
    }


def _batch(case: Case, gates: Any, model: Any, about: Literal["general", "domain"], most: int) -> Work:
    from adapt.method.das.gradients import measure_settings
    from adapt.method.das.measure import gate_sizes
    from adapt.method.das.stage import Measuring
    from adapt.method.das.views import Disagreement
    from adapt.model.locate import Pretrained
    from adapt.objective.base import Batch
    from adapt.objective.build import make
    from adapt.train.precision import resolve

    config, device = config_of(case, "lean"), next(model.parameters()).device
    measuring = Measuring(config, config.method_options, Pretrained(Path(), Path()), (), None, about)
    settings = measure_settings(measuring, resolve(config.training.precision, device))
    loss: Any = Disagreement() if about == "general" else make(config.objective, tokenizer_of(case), config.seed)

    def batch(number: int, columns: dict[str, Any]) -> None:
        rows = {name: column[:most] for name, column in columns.items()}
        gate_sizes(model, gates, loss, [(number, Batch.of(rows))], settings)

    return batch
