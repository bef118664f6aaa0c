"""Draws the figures of docs/science from the result files in docs/science/data: `python scripts/figures.py`."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLUE, GREY = "#3f51b5", "#888888"


def main() -> None:
    """Draws three figures: the methods on five domains, the contributions of the parts of DAS, and the findings."""
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


if __name__ == "__main__":
    main()
