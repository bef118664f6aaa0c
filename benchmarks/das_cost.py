"""What DAS costs over plain training: time and memory of a step, and the pass that measures importance.

Plain training and DAS (soft mask of updates; contrast `exact`, `lean`, `economy`) take the same rows of 164 tokens
through the product's own loop. Their steps alternate in one process, and every figure is the median over rounds of the
ratio to the plain step of the same round. `_flops` is the ratio by count; `_memory` that of the peaks of fresh
processes. `importance_steps`: how many plain steps of the paper's 248 rows 10 batches of 64 rows take for general
knowledge (`_domain`: for a domain's). CPUs get fewer rows in a step and in a batch, and times are scaled by rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from adapt.config import Config, DasConfig, MethodConfig, TrainingConfig
from benchmarks.common import Result, Targets, apart, machine, peak_bytes, show
from benchmarks.ours import alone, settled
from benchmarks.texts import Case, build_model, documents, steps_of, tokenizer_of

if TYPE_CHECKING:
    from adapt.train.loop import Loop

PLAIN = "plain"
MOST = {"exact": 2.9, "lean": 2.3, "economy": 1.4}
PASSES: dict[str, Literal["general", "domain"]] = {"importance_steps": "general", "importance_steps_domain": "domain"}
TARGETS: Targets = {f"{cost}{kind}": ("<=", most) for kind in ("", "_flops", "_memory") for cost, most in MOST.items()}
TARGETS |= {figure: ("<=", 3.0) for figure in PASSES}
LENGTH, STEP_ROWS, BATCHES, BATCH_ROWS = 164, 248, 10, 64
WARM_UP = 1
Work = Callable[[int, dict[str, Any]], Any]
"""A step, or a batch of the importance pass: of a number, on the columns of some rows."""


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    case: Case
    rounds: int

    @classmethod
    def of(cls, size: str, quick: bool) -> Plan:
        """The paper's batch on a GPU, in four passes; on CPUs one pass of some seconds."""
        if machine()["gpu"]:
            return cls(Case(size, "grouped", STEP_ROWS, LENGTH, micro_batch=STEP_ROWS // 4), 3 if quick else 10)
        return cls(Case(size, "grouped", 4 if quick else 24, LENGTH), 2 if quick else 5)

    def config(self, name: str) -> Config:
        """Of a job that trains so: plainly, or with DAS at some cost."""
        training = TrainingConfig(global_batch_size=self.case.rows, sequence_length=LENGTH, learning_rate=1e-4)
        if name == PLAIN:
            return Config(training=training)
        return Config(training=training, method=MethodConfig("das"), das=DasConfig(contrast_cost=name))  # type: ignore[arg-type]


def measure(plan: Plan) -> Result:
    """Times, operations and memory of plain training and of all costs."""
    seconds, operations = apart(_seconds, plan), apart(_operations, plan)
    peaks = {name: apart(_peak, plan, name) for name in (PLAIN, *MOST)}
    result = Result({})
    for cost in MOST:
        ratios = _ratios(seconds[cost], seconds[PLAIN])
        time, count = median(ratios), operations[cost] / operations[PLAIN]
        result.figures |= {cost: time, f"{cost}_flops": count, f"{cost}_memory": peaks[cost] / peaks[PLAIN]}
        result.details.append((f"{cost}: rounds", f"{min(ratios):.2f} to {max(ratios):.2f}"))
        result.details.append((f"{cost}: time over operations", f"{time / count:.2f}"))
    rows = plan.case.rows
    scale = BATCHES * BATCH_ROWS / min(BATCH_ROWS, rows) * rows / STEP_ROWS
    for figure in PASSES:
        result.figures[figure] = scale * median(_ratios(seconds[figure], seconds[PLAIN]))
        count = BATCHES * BATCH_ROWS * operations[figure] / (STEP_ROWS * operations[PLAIN])
        result.details.append((f"{figure}: by operations", f"{count:.2f}"))
    result.figures = {figure: result.figures[figure] for figure in TARGETS}
    result.details += [(f"{name}: peak memory", f"{peak / 2**30:.2f} GiB") for name, peak in peaks.items()]
    result.details.append(("plain step", f"{median(seconds[PLAIN]):.3f} s of {rows} rows x {LENGTH} tokens"))
    return result


def _ratios(one: list[float], other: list[float]) -> list[float]:
    return [a / b for a, b in zip(one, other, strict=True)]


def _seconds(plan: Plan) -> dict[str, list[float]]:
    """Of every step and batch, in rounds of all."""
    import torch.distributed as dist

    alone()
    works = {name: _step(plan, name) for name in (PLAIN, *MOST)} | _importance_batches(plan)
    found: dict[str, list[float]] = {name: [] for name in works}
    for number, columns in enumerate(steps_of(plan.case, WARM_UP + plan.rounds)):
        for name, work in works.items():
            began = settled()
            work(number, columns)
            found[name].append(settled() - began)
    dist.destroy_process_group()
    return {name: each[WARM_UP:] for name, each in found.items()}


def _peak(plan: Plan, name: str) -> int:
    """Most memory of two steps [bytes]: in the second, the optimizer's state is there."""
    import torch.distributed as dist

    alone()
    step = _step(plan, name)
    for number, columns in enumerate(steps_of(plan.case, 2)):
        step(number, columns)
    dist.destroy_process_group()
    return peak_bytes()


def _step(plan: Plan, name: str) -> Work:
    loop = _loop(plan, name)
    return lambda number, columns: loop.step(columns, number, loop.training.learning_rate)


def _loop(plan: Plan, name: str) -> Loop:
    from adapt.method.build import make_method
    from adapt.objective.build import make
    from adapt.train.loop import Loop
    from adapt.train.options import apply_options
    from adapt.train.precision import resolve

    config, case, model, device = plan.config(name), plan.case, *_model(plan.case)
    method, rows = make_method(config), case.micro_batch or case.rows
    with tempfile.TemporaryDirectory() as folder:
        method.prepare_model(model, _random_importance(model, Path(folder)))
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
    return Loop(engine, objective, method, config.training, rows, WARM_UP + plan.rounds, config.seed)


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

    from adapt.method.importance import Importance, save_importance
    from adapt.method.normalize import normalize, random_sizes

    units = normalize(random_sizes(model, 0), "paper")
    save_importance(Importance(units, None, torch.zeros(0, dtype=torch.int64)), model, folder)
    return {"importance": folder}


def _importance_batches(plan: Plan) -> dict[str, Work]:
    """A batch's gradients at the gates, taken as the stage takes them, by the name of its figure."""
    from adapt.method.measure import gate_sizes
    from adapt.method.views import Disagreement
    from adapt.model.dropout import use_quick_dropout
    from adapt.model.locate import Pretrained
    from adapt.model.units import Gates
    from adapt.objective.base import Batch
    from adapt.objective.build import make
    from adapt.train.gradients import _settings
    from adapt.train.importance import Measuring

    config, (model, device) = plan.config("lean"), _model(plan.case)
    if device.type == "cpu":
        use_quick_dropout(model)
    gates = Gates(model.to(device))

    def work(about: Literal["general", "domain"]) -> Work:
        settings = _settings(Measuring(config, Pretrained(Path(), Path()), "", None, about), device)
        objective = make(config.objective, tokenizer_of(plan.case), config.seed)
        loss = Disagreement() if about == "general" else objective

        def batch(number: int, columns: dict[str, Any]) -> None:
            rows = {name: column[:BATCH_ROWS] for name, column in columns.items()}
            gate_sizes(model, gates, loss, [(number, Batch.of(rows, device))], settings)

        return batch

    return {figure: work(about) for figure, about in PASSES.items()}


def _operations(plan: Plan) -> dict[str, float]:
    """Floating point operations a token: of a training step, and of the importance pass.

    That pass goes forward, and back through activations alone, not weights; two views are compared without a head.
    """
    from adapt.model.size import model_size
    from adapt.train.flops import added_by, forward_flops, layer_flops, training_flops, workload

    with tempfile.TemporaryDirectory() as folder:
        build_model(plan.case).save_pretrained(folder)
        size = model_size(Path(folder))
    assert size
    ids = documents(plan.case)
    mean, configs = sum(map(len, ids)) / len(ids), {name: plan.config(name) for name in (PLAIN, *MOST)}
    works = {name: workload(each.objective, LENGTH, mean, added_by(each)) for name, each in configs.items()}
    found = {name: training_flops(size, work) for name, work in works.items()}
    general, domain = PASSES
    plain = works[PLAIN]
    return found | {general: 2 * 2 * layer_flops(size, plain.context), domain: 2 * forward_flops(size, plain)}


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.das_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument("--size", choices=("small", "base", "large"), default="base", help="base and large: RoBERTa's")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    plan = Plan.of(options.size, options.quick)
    result = measure(plan)
    show(f"das_cost ({options.size})", TARGETS, result)
    if options.json:
        values = {"name": "das_cost", "machine": machine(), "figures": result.figures, "targets": TARGETS}
        values["details"] = result.details
        options.json.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
