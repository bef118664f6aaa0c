"""Stage `sequence`: what a sequence of domains came to, from the records of all that was measured on its way."""

from collections.abc import Mapping
from typing import Any

from adapt.chain import Outcome, Record
from adapt.statistics.continual import sequence_figures
from adapt.train.importance import saturated, with_floor

GENERAL = "general"
Row = dict[str, Any]


def summarize(identity: Mapping[str, Any], floor: float, done: Mapping[str, Record]) -> Outcome:
    """The matrices of scores and of held-out losses, and the figures that are read off them.

    Args:
        identity: `order` of the domains, `tasks` (name -> domain), `finetune_seeds`, `mode`, `method` and `seed`.
        floor: of plasticity.
        done: the records by the names that `adapt.stages.continual` gives them.

    Returns:
        Metrics: `scores` and `losses`, each with `columns` (task or domain -> number of the domain) and `rows`, one for
        the model to begin with and one after each domain; `plasticity` before each domain; `model` and `models`,
        folders; and the figures of `adapt.statistics.continual`. Cost: the device time of all stages.
    """
    order = list(identity["order"])
    steps = len(order)
    exports = {number: done[name] for number in range(1, steps + 1) if (name := f"export {number}") in done}
    scores = _scores(identity, done, steps)
    losses = _losses(order, identity["mode"], exports, done)
    masked = [done[name] for number in range(steps + 1) if (name := f"importance {number}") in done]
    left = [with_floor(record.metrics["plasticity"], floor) for record in masked]
    metrics = {
        **{name: identity[name] for name in ("order", "mode", "method", "seed")},
        "scores": scores,
        "losses": losses,
        "plasticity": left,
        "warnings": [
            f"before domain {number}: {each}" for number, all in enumerate(left, 1) for each in saturated(all)
        ],
        "model": str(list(exports.values())[-1].path),
        "models": {name: str(record.path) for name, record in zip(order, exports.values(), strict=False)},
        **sequence_figures(scores, losses, identity["mode"]),
    }
    return Outcome(metrics, _cost(done))


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
    """Held-out losses [nats a predicted token]. A domain without held-out text has none."""
    first = done[f"loss of {order[0]}"].metrics
    rows: list[Row] = [{name: done[f"loss of {name}"].metrics["domain_loss"] for name in order}]
    rows[0] |= {GENERAL: first[f"{GENERAL}_loss"]} if f"{GENERAL}_loss" in first else {}
    for after in range(1, len(order) + 1):
        rows.append({})
        if after not in exports:
            continue
        others = done[f"losses {after}"].metrics if f"losses {after}" in done else {}
        rows[after] = {name: others[f"{name}_loss"] for name in order if f"{name}_loss" in others}
        if mode != "joint":  # its export is about all domains together
            rows[after][order[after - 1]] = exports[after].metrics["heldout_loss_after"]
        if mode == "continual":  # what the domain lost, or won, before it was learnt
            rows[after - 1].setdefault(order[after - 1], exports[after].metrics["heldout_loss_before"])
        if GENERAL in rows[0]:
            rows[after][GENERAL] = exports[after].metrics["general_loss_after"]
    columns: dict[str, int | None] = {name: number for number, name in enumerate(order)}
    return {"columns": columns | ({GENERAL: None} if GENERAL in rows[0] else {}), "rows": rows}


def _cost(done: Mapping[str, Record]) -> dict[str, Any]:
    """Each stage once, whatever it is called."""
    records = {record.key: record for record in done.values() if record.stage in ("export", "finetune", "importance")}
    seconds = sum(record.cost.get("device_seconds") or 0.0 for record in records.values())
    return {"device_seconds": seconds, "device_hours": seconds / 3600}
