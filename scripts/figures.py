"""Draws the figures of docs/science from the result files in docs/science/data: `python scripts/figures.py`."""

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLUE, GREY = "#3f51b5", "#888888"
COLORS = ["#3f51b5", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"]
"""Colors of recipes that people with color blindness can tell apart."""


def main() -> None:
    """Draws the methods on five domains, the parts of DAS, the findings, and the gain by number of labels."""
    methods = rows_of("methods_five.csv")
    forest(
        [f"{row['method']} ({row['best_setting'].removeprefix('defaults: ')})" for row in methods if row["difference"]],
        [interval(row, "difference") for row in methods if row["difference"]],
        "average loss on five domains, difference from plain training [nats per token]",
        DOCS / "figures" / "methods_five.svg",
    )
    parts = [row for row in rows_of("das_parts.csv") if row["forgetting_difference"]]
    forest(
        [row["training"] for row in parts],
        [interval(row, "forgetting_difference") for row in parts],
        "forgetting, difference from DAS [nats per token]",
        DOCS / "figures" / "das_parts.svg",
    )
    findings = rows_of("findings.csv")
    forest(
        [row["finding"] for row in findings],
        [interval(row, "difference") for row in findings],
        "difference [nats per token]; below 0 is better",
        DOCS / "figures" / "findings.svg",
    )
    parts = ["study_labels_tasks.json", "study_labels_imdb.json", "study_labels_imdb1000.json"]
    gains_by_labels(parts, DOCS / "figures" / "labels.svg")


def rows_of(name: str) -> list[dict[str, str]]:
    """Reads a result file: one row per method or run."""
    with open(DOCS / "science" / "data" / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def interval(row: dict[str, str], column: str) -> tuple[float, float, float]:
    """Returns the value in a column with the ends of its 95% interval."""
    return float(row[column]), float(row[f"{column}_low"]), float(row[f"{column}_high"])


def forest(labels: list[str], intervals: list[tuple[float, float, float]], title: str, file: Path) -> None:
    """Draws one line per label: the value as a dot, and its 95% interval as a bar."""
    matplotlib.rcParams.update({"svg.hashsalt": file.name, "svg.fonttype": "none"})  # makes the file reproducible
    figure, axes = pyplot.subplots(figsize=(6.0, 0.6 + 0.24 * len(labels)))
    for place, (value, low, high) in enumerate(intervals):
        color = GREY if low <= 0 <= high else BLUE
        axes.plot([low, high], [place, place], color=color, linewidth=2, solid_capstyle="butt")
        axes.plot([value], [place], "o", color=color, markersize=5)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    axes.set_xlabel(title, fontsize=9)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def gains_by_labels(names: list[str], file: Path) -> None:
    """Draws a panel per task: each recipe's gain over the base model in points of F1, by the number of labels.

    Args:
        names: result files of benchmarks/study_labels.yaml.
        file: the picture.
    """
    gains: dict[str, dict[str, dict[int, tuple[float, float, float]]]] = {}
    margin = 0.0
    for name in names:
        study: dict[str, Any] = json.loads((DOCS / "science" / "data" / name).read_text("utf-8"))
        margin = study["margin"]["points"]
        for look in study["looks"]:
            task, labels = look["row"].split(" \N{MIDDLE DOT} labels=")
            for recipe, seen in look["found"].items():
                gain = (100 * seen["difference"], 100 * seen["low"], 100 * seen["high"])
                gains.setdefault(task, {}).setdefault(recipe, {})[int(labels)] = gain
    recipes = list({recipe: None for by_recipe in gains.values() for recipe in by_recipe})
    matplotlib.rcParams.update({"svg.hashsalt": file.name, "svg.fonttype": "none"})
    figure, panels = pyplot.subplots(1, len(gains), figsize=(3.0 * len(gains), 2.9), sharey=True)
    for axes, (task, by_recipe) in zip(panels, gains.items(), strict=True):
        labels = sorted({number for each in by_recipe.values() for number in each})
        axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0)
        axes.axhline(0, color="black", linewidth=0.8)
        for recipe, each in by_recipe.items():
            shift = 0.11 * (recipes.index(recipe) - (len(recipes) - 1) / 2)
            for place, number in enumerate(labels):
                value, low, high = each[number]
                color = COLORS[recipes.index(recipe)]
                axes.plot([place + shift] * 2, [low, high], color=color, linewidth=2, solid_capstyle="butt")
                axes.plot([place + shift], [value], "o", color=color, markersize=4)
        axes.set_xticks(range(len(labels)), [f"{number:,}" for number in labels], fontsize=9)
        axes.set_xlabel(f"labels of {task}", fontsize=9)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False, bottom=False, labelsize=9)
    panels[0].set_ylabel("gain over the base model [points]", fontsize=9)
    handles = [pyplot.Line2D([], [], marker="o", color=color) for color in COLORS[: len(recipes)]]
    figure.legend(handles, recipes, loc="upper center", ncols=6, fontsize=9, frameon=False)
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
