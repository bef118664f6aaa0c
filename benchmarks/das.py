"""Runs training steps with methods against forgetting, and DAS's importance measurement, for the cost benchmarks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from adapt.config import Config, MethodConfig, TrainingConfig
from adapt.method.das.method import DasOptions
from benchmarks.texts import Case, build_model, tokenizer_of

if TYPE_CHECKING:
    from adapt.train.loop import Loop

Training = Literal["plain", "exact", "lean", "economy"]
"""Kind of training step. `plain` uses no method. The others name the three ways in which DAS
can compute its contrastive loss."""
Work = Callable[[int, dict[str, Any]], Any]
"""Function that runs one training step. It takes the step's number and the columns of some rows."""


def config_of(case: Case, training: Training) -> Config:
    """Returns the configuration of a job with the given kind of training step."""
    settings = TrainingConfig(global_batch_size=case.rows, sequence_length=case.length, learning_rate=1e-4)
    if training == "plain":
        return Config(training=settings)
    return Config(training=settings, method=MethodConfig("das"), method_options=DasOptions(contrast_cost=training))


def step_of(case: Case, training: Training, steps: int) -> Work:
    """Builds a model and returns a function that runs an optimizer step of the given kind."""
    return method_step(case, config_of(case, training), steps)


def method_step(case: Case, config: Config, steps: int) -> Work:
    """Builds a model and returns a function that runs an optimizer step with the configured method."""
    loop = _loop(case, config, steps)
    return lambda number, columns: loop.step(columns, number, loop.training.learning_rate)


def _loop(case: Case, config: Config, steps: int) -> Loop:
    from adapt.method.base import Setting
    from adapt.method.table import method_of
    from adapt.objective.masking import make
    from adapt.train.engine import Engine
    from adapt.train.loop import Loop
    from adapt.train.model_options import apply_options, resolve

    model, device = _model(case)
    method, rows = method_of(config), case.micro_batch or case.rows
    precision, passes = resolve("auto", device), case.rows // rows
    past = tempfile.TemporaryDirectory()
    setting = Setting(
        past=_past(model, config, Path(past.name)), device=device, precision=precision, load=lambda _: _model(case)[0]
    )
    model = cast("Any", method.prepare_model(model, setting))
    apply_options(model.train().to(device), config.training, device)
    engine = Engine(model, config.training, 0, precision, rows, passes)
    method.begin(engine)
    past.cleanup()
    objective = make(config.objective, tokenizer_of(case), config.seed)
    return Loop(engine, objective, method, config.training, rows, steps, config.seed)


def _model(case: Case) -> tuple[Any, Any]:
    """Loads a model as jobs do. Returns the model and its device."""
    import torch

    from adapt.model.packing.isolation import keep_documents_apart

    model = build_model(case).eval()
    keep_documents_apart(model)
    return model, torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _past(model: Any, config: Config, folder: Path) -> Mapping[str, Path]:
    """Writes the files that earlier stages of the method would have written for a training run."""
    if config.method.kind == "ewc":
        from safetensors.torch import save_file

        from adapt.method.weight_pulls import FISHER_FILE

        weights = {name: each.detach().square() for name, each in model.named_parameters()}
        save_file(weights, folder / FISHER_FILE, {"domains": "1"})
        return {"fisher": folder}
    return _random_importance(model, folder) if config.method.kind == "das" else {}


def _random_importance(model: Any, folder: Path) -> Mapping[str, Path]:
    """Writes random importances and returns the paths of their files."""
    import torch

    from adapt.method.das.importance import Importance, normalize, random_sizes, save_importance

    units = normalize(random_sizes(model, 0), "paper")
    save_importance(Importance(units, None, torch.zeros(0, dtype=torch.int64)), model, folder)
    return {"importance": folder}


def importance_batches(case: Case, most: int) -> dict[str, Work]:
    """Returns functions that measure importance on one batch, in the same way as a job's stage.

    The key `general` measures importance for general knowledge, and the key `domain` importance for a domain.

    Args:
        case: the model and the rows.
        most: maximum number of rows in a batch.
    """
    from adapt.model.layers import Gates
    from adapt.model.packing.attention import use_quick_dropout

    model, device = _model(case)
    if device.type == "cpu":
        use_quick_dropout(model)
    gates = Gates(model.to(device))
    return {
        "general": _batch(case, gates, model, "general", most),
        "domain": _batch(case, gates, model, "domain", most),
    }


def _batch(case: Case, gates: Any, model: Any, about: Literal["general", "domain"], most: int) -> Work:
    from adapt.method.das.contrast import Disagreement
    from adapt.method.das.criteria import gate_sizes
    from adapt.method.das.stage import Measuring
    from adapt.method.das.unit_sizes import measure_settings
    from adapt.model.locate import Pretrained
    from adapt.objective.masking import make
    from adapt.objective.objective import Batch
    from adapt.train.model_options import resolve

    config, device = config_of(case, "lean"), next(model.parameters()).device
    measuring = Measuring(config, config.method_options, Pretrained(Path(), Path()), (), None, about)
    settings = measure_settings(measuring, resolve(config.training.precision, device))
    loss: Any = Disagreement() if about == "general" else make(config.objective, tokenizer_of(case), config.seed)

    def batch(number: int, columns: dict[str, Any]) -> None:
        rows = {name: column[:most] for name, column in columns.items()}
        gate_sizes(model, gates, loss, [(number, Batch.of(rows))], settings)

    return batch
