"""The result of jobs/advise.py."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adapt.console import duration, log
from adapt.summary.tables import show

Values = Mapping[str, Any]
TEXTS = {"corpus": "corpus", "general": "general", "pool": "pool", "candidates": "pool to select from"}


def show_advice(evidence: Values, advice: Values) -> None:
    """What was looked at, the recipes in order with their costs, what speaks for each, and what to run first."""
    _show_texts(evidence)
    if evidence["tasks"]:
        _show_tasks(evidence["tasks"])
    _show_remarks(advice["remarks"])
    _show_recipes(advice)
    for name in ("refusal", "rate_from"):
        if advice[name]:
            log({"refusal": "training would be refused: ", "rate_from": "speed of a device: "}[name] + advice[name])
    log("DSP: Don't Stop Pretraining. Votes: of a strong rule 3, a moderate 2, a weak 1, for less against.")
    first = advice["recipes"][0]
    if first["budget"] == "above":
        log("every recipe is above advice.budget_device_hours; this is the one to begin with if it is raised:")
    log(f"run first ({first['name']}): {first['command']}")
    if first["name"] == "DAPT+TAPT":
        log("then jobs/tapt.py likewise, with --model.path set to the folder of the model that this makes")


def _show_texts(evidence: Values) -> None:
    rows = []
    for name, label in TEXTS.items():
        if text := evidence[name]:
            about = "" if text["is_exact"] else "about "
            sizes = (_millions(text["bytes"], "MB"), _millions(text["tokens"], "M"))
            cells = (f"{about}{size}" if size else "not known" for size in sizes)
            rows.append([label, *cells, f"{text['sampled']:,}", f"{text['fertility']:.2f}", f"{text['loss']:.2f}"])
    if rows:
        _show(("text", "size", "tokens", "documents looked at", "pieces a word", "model's loss"), rows)
    if evidence["overlap"] is not None:
        log(f"corpus and general text have {evidence['overlap']:.1%} of their most frequent words in common")


def _show_tasks(tasks: Sequence[Values]) -> None:
    columns = (
        "task",
        "train",
        "classes",
        "rarest",
        "test in train",
        "pieces a word",
        "model's loss",
        "words in common",
    )
    rows = [
        [
            task["name"],
            f"{task['examples']:,}",
            f"{task['classes']}",
            f"{task['rarest']:,}",
            f"{task['leaked']} of {task['test']:,}",
            f"{task['fertility']:.2f}",
            f"{task['loss']:.2f}",
            _overlaps(task),
        ]
        for task in tasks
    ]
    _show(columns, rows)


def _overlaps(task: Values) -> str:
    names = {"overlap": "corpus", "general_overlap": "general"}
    return ", ".join(f"{name} {task[field]:.1%}" for field, name in names.items() if task[field] is not None)


def _show_remarks(remarks: Sequence[Values]) -> None:
    rows = []
    for remark in remarks:
        sides = [f"for {' and '.join(remark['speaks_for'])}"] if remark["speaks_for"] else []
        sides += [f"against {' and '.join(remark['speaks_against'])}"] if remark["speaks_against"] else []
        checked = f"\nin our replication: {remark['checked']}" if remark["checked"] else ""
        side = f"{remark['strength']}, {', '.join(sides)}" if sides else "note"
        rows.append([side, remark["reason"], remark["source"] + checked])
    _show(("speaks", "because", "source"), rows)


def _show_recipes(advice: Values) -> None:
    rows = []
    for place, recipe in enumerate(advice["recipes"], start=1):
        cost = recipe["cost"]
        hours, price = cost["device_hours"], cost["price"]
        time = "not known" if hours is None else f"{hours:.3g} device-hours ({duration(hours * 3600)})"
        flops = "not known" if cost["flops"] is None else f"{cost['flops']:.1e}"
        money = [] if price is None else [f"{price:,.2f}"]
        tokens = _millions(cost["tokens"], "M") or "not known"
        notes = "" if recipe["budget"] == "within" else f" ({recipe['budget']} budget)".replace("known budget", "known")
        rows.append([f"{place}", recipe["name"] + notes, f"{recipe['votes']:+d}", tokens, flops, time, *money])
    priced = any(recipe["cost"]["price"] is not None for recipe in advice["recipes"])
    _show(("", "recipe", "votes", "tokens", "FLOPs", "about", *(["cost"] if priced else [])), rows)


def _millions(number: float | None, unit: str) -> str:
    return "" if number is None else f"{number / 1e6:,.1f} {unit}"


def _show(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    show(table)
