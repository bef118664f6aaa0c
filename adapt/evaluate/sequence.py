"""Stage `sequence`: what a sequence of domains came to, from the records of all that was measured on its way."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.config import DasConfig
from adapt.runner import Outcome, Record
from adapt.statistics.continual import sequence_figures
from adapt.train.importance import plasticity_under, saturated

GENERAL = "general"
Row = dict[str, Any]


def summarize(
    identity: Mapping[str, Any], das: DasConfig, done: Mapping[str, Record], warnings: Sequence[str] = ()
) -> Outcome:
    """The matrices of scores and of held-out losses, and the figures that are read off them.

    Args:
        identity: `order` of the domains, `tasks` (name -> domain), `finetune_seeds`, `mode`, `method` and `seed`.
        das: says what importance masks.
        done: the records by the names that `adapt.stages.continual` gives them.
        warnings: of what is known before.

    Returns:
        Metrics: `scores` and `losses`, each with `columns` (task or domain -> number of the domain) and `rows`, one for
        the model to begin with and one after each domain; `plasticity` before each domain; `model` and `models`,
        folders; `overlap`, how many measured documents were trained on; and the figures of
        `adapt.statistics.continual`. Cost: the device time of all stages.
    """
    order, mode = list(identity["order"]), identity["mode"]
    steps = len(order)
    exports = {number: done[name] for number in range(1, steps + 1) if (name := f"export {number}") in done}
    scores, losses = _scores(identity, done, steps), _losses(order, mode, exports, done)
    left = _plasticity(das, done, steps)
    metrics = {
        **{name: identity[name] for name in ("order", "mode", "method", "seed")},
        "scores": scores,
        "losses": losses,
        "plasticity": list(left.values()),
        "warnings": [
            *warnings,
            *(
                f"{name} has fewer than two held-out documents, so its loss is left out"
                for name in order
                if name not in losses["columns"]
            ),
            *(f"after {_domains(number)}, {each}" for number, one in left.items() for each in saturated(das, one)),
        ],
        "model": str(list(exports.values())[-1].path),
        "models": _models(order, exports),
        "overlap": _overlap(done),
        **sequence_figures(scores, losses, mode),
    }
    return Outcome(metrics, _cost(done))


def _plasticity(das: DasConfig, done: Mapping[str, Record], steps: int) -> dict[int, dict[str, list[float]]]:
    """By the number of domains learnt, kind of unit and layer."""
    measured = {number: done[name] for number in range(steps + 1) if (name := f"importance {number}") in done}
    found = {number: plasticity_under(das, record.metrics["plasticity"]) for number, record in measured.items()}
    return {number: left for number, left in found.items() if left}


def _domains(number: int) -> str:
    return f"{number} domain{'' if number == 1 else 's'}"


def _models(order: list[str], exports: Mapping[int, Record]) -> dict[str, str]:
    """The folder of each model, by the domain that was learnt last, or all at once."""
    names = order if len(exports) == len(order) else [", ".join(order)]
    return {name: str(record.path) for name, record in zip(names, exports.values(), strict=True)}


def _scores(identity: Mapping[str, Any], done: Mapping[str, Record], steps: int) -> dict[str, Any]:
    tasks, rows = identity["tasks"], []
    metric: dict[str, str] = {}
    for after in range(steps + 1):
        row: Row = {}
        for task in tasks:
            names = [f"{task} {seed} after {after}" for seed in identity["finetune_seeds"]]
            if names[0] in done:
                row[task] = [done[name].metrics["score"] for name in names]
                metric[task] = done[names[0]].metrics["metric"]
        rows.append(row)
    columns = {task: list(identity["order"]).index(domain) for task, domain in tasks.items()}
    return {"columns": columns, "metric": metric, "rows": rows}


def _losses(order: list[str], mode: str, exports: Mapping[int, Record], done: Mapping[str, Record]) -> dict[str, Any]:
    """Held-out losses [nats a predicted token]. A text that an export did not measure, having too little, has none."""
    rows: list[Row] = [{name: done[f"loss of {name}"].metrics["domain_loss"] for name in order}]
    rows[0][GENERAL] = done[f"loss of {order[0]}"].metrics.get(f"{GENERAL}_loss")
    for after in range(1, len(order) + 1):
        rows.append({})
        if after not in exports:
            continue
        others = done[f"losses {after}"].metrics if f"losses {after}" in done else {}
        rows[after] = {name: others[f"{name}_loss"] for name in order if f"{name}_loss" in others}
        found = exports[after].metrics
        if mode != "joint":  # its export is about all domains together
            rows[after][order[after - 1]] = found["heldout_loss_after"]
        if mode == "continual":  # what the domain lost, or won, before it was learnt
            rows[after - 1].setdefault(order[after - 1], found["heldout_loss_before"])
        rows[after][GENERAL] = found.get(f"{GENERAL}_loss_after")
    columns: dict[str, int | None] = {**{name: number for number, name in enumerate(order)}, GENERAL: None}
    known = [name for name in columns if not any(name in row and row[name] is None for row in rows)]
    return {
        "columns": {name: columns[name] for name in known},
        "rows": [{name: row[name] for name in known if name in row} for row in rows],
    }


def _overlap(done: Mapping[str, Record]) -> int | None:
    """How many measured documents were trained on, summed over what was measured of every model; None: not known."""
    exports = [record.metrics for name, record in done.items() if name.startswith("export ")]
    found = [metrics[name] for metrics in exports for name in ("heldout_overlap", "general_overlap") if name in metrics]
    others = [record.metrics for name, record in done.items() if name.startswith("losses ")]
    found += [value for metrics in others for name, value in metrics.items() if name.endswith("_overlap")]
    return None if None in found else sum(found)


def _cost(done: Mapping[str, Record]) -> dict[str, Any]:
    """Each stage once, whatever it is called."""
    records = {record.key: record for record in done.values() if record.stage in ("export", "finetune", "importance")}
    prices = [record.cost.get("cost") for record in records.values()]
    seconds = sum(record.cost.get("device_seconds") or 0.0 for record in records.values())
    cost = None if None in prices else sum(price for price in prices if price)
    return {"device_seconds": seconds, "device_hours": seconds / 3600, "cost": cost}
