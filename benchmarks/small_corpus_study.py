"""Cuts the texts of the study of small corpora, and prints its tables: losses of all recipes with intervals and costs.

python -m benchmarks.small_corpus_study cut --data data --out /tmp/small
python -m benchmarks.small_corpus_study show benchmarks/small_corpus_study.yaml [--csv FILE] [options of dontstop chain]

The option --csv writes the losses of all models to a file.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from adapt.evaluate.measurements import LossChange
from adapt.show.blocks import NONE, Cell, Table
from adapt.show.report.study import Study
from adapt.stage.ensemble import EnsembleRow
from adapt.statistics.comparison import paired
from benchmarks.finished_chain import print_tables, read_finished, split_file, write_csv

CORPORA = {"cs": "cs_acl_abstracts", "pubmed": "biomed_pubmed"}
SIZES = (1, 3, 10)
"""Sizes of the texts [MB of UTF-8]."""
NAMES = {"best": "best single model", "ensemble": "mean of predictions"}
"""Row names of the best single model and of the ensemble. In the table, other models have their own names."""


def cut(data: Path, out: Path) -> None:
    """Writes the first 1, 3 and 10 MB of each corpus. Each larger text begins with the smaller texts."""
    out.mkdir(parents=True, exist_ok=True)
    for domain, corpus in CORPORA.items():
        for size in SIZES:
            with gzip.open(data / "corpora" / f"{corpus}.jsonl.gz", "rt", encoding="utf-8") as lines:
                text = "".join(first_documents(lines, size * 1_000_000))
            (out / f"{domain}-{size}.jsonl").write_text(text, encoding="utf-8")


def first_documents(lines: Iterator[str], size: int) -> Iterator[str]:
    """Yields lines of a corpus until their texts have `size` bytes in total. The last document is not cut."""
    for line in lines:
        if size <= 0:
            return
        size -= len(json.loads(line)["text"].encode())
        yield line


def losses(finished: Study) -> Table:
    """Makes the table of all ensembles: a row per domain, size, search and recipe."""
    rows: list[list[Cell | str]] = []
    for entry in finished.entries:
        if entry.record.stage == "ensemble":
            own: list[EnsembleRow] = [row for row in entry.result.rows if row.role != "member"]
            rows += [[*(entry.values[name] for name in ("domain", "size", "way")), *_cells(row)] for row in own]
    texts = ("loss on the domain", "from the best single", "loss on general text", "from the best single")
    header = ["domain", "MB", "search", "recipe", *texts, "device-hours"]
    note = (
        "Nats per token; 95% intervals over documents. The best single model was chosen on the same documents. There "
        "is one ensemble, one student and one average per row, so the intervals do not cover differences between seeds."
    )
    return Table(header, rows, "Small corpora", note)


def _cells(row: EnsembleRow) -> list[Cell | str]:
    figures = [
        cell
        for text in ("domain", "general")
        for cell in (
            row.loss[text].cell(".3f"),
            row.change[text].cell("+.3f") if text in row.change else Cell(NONE),
        )
    ]
    return [NAMES.get(row.role, row.name), *figures, NONE if row.device_hours is None else f"{row.device_hours:.3g}"]


def shares_kept(finished: Study) -> Table:
    """Makes the table of how much of the ensemble's gain the single models keep: a row per domain, size and search.

    The gain is the loss of the best single model minus that of the ensemble, on the domain.
    """
    rows: list[list[Cell | str]] = []
    kept: list[tuple[float, ...]] = []
    for entry in finished.entries:
        if entry.record.stage == "ensemble":
            of = {row.name if row.role == "other" else row.role: row for row in entry.result.rows}
            loss = {name: row.loss["domain"].value for name, row in of.items()}
            gain = loss["best"] - loss["ensemble"]
            kept.append(tuple((loss["best"] - loss[name]) / gain for name in ("weight average", "student")))
            rows.append(
                [
                    *(entry.values[name] for name in ("domain", "size", "way")),
                    *(f"{loss[name]:.3f}" for name in ("base", "best")),
                    of["ensemble"].change["domain"].cell("+.3f"),
                    *(f"{share:.0%}" for share in kept[-1]),
                ]
            )
    if kept:
        means = (f"{sum(shares) / len(kept):.0%}" for shares in zip(*kept, strict=True))
        rows.append(["mean", *[NONE] * 5, *means])
    header = ["domain", "MB", "search", "before training", "best single", "mean of predictions"]
    return Table(
        [*header, "kept by the weight average", "kept by the student"],
        rows,
        "Many models, one model",
        "Losses on the domain, and the difference of the ensemble from the best single model, in nats per token.",
    )


def decay_gains(finished: Study) -> Table:
    """Makes the table of single models with tuned against usual weight decay, paired by seed.

    `plain` has its own best passes and learning rate. `undecayed` has those of `decayed`, so its difference from
    `decayed` is the effect of weight decay alone.
    """
    found: dict[tuple[str, str], dict[str, dict[str, dict[str, LossChange]]]] = {}
    for entry in finished.entries:
        if entry.record.stage == "export" and entry.name in ("single", "undecayed"):
            values = entry.values
            way = values.get("way", entry.name)
            of_way = found.setdefault((values["domain"], values["size"]), {}).setdefault(way, {})
            of_way[values["seed"]] = entry.result.losses
    rows: list[list[Cell | str]] = []
    for (domain, size), ways in found.items():
        decayed = ways.get("decayed", {})
        for baseline in ("plain", "undecayed"):
            other = ways.get(baseline, {})
            shared = [seed for seed in decayed if seed in other]
            for text in ("domain", "general") if shared else ():
                gap = paired([decayed[seed][text].after.value - other[seed][text].after.value for seed in shared])
                ends = "" if gap.low is None or gap.high is None else f"{gap.low:+.3f} to {gap.high:+.3f}"
                cell = Cell(f"{gap.difference:+.3f}", ends)
                rows.append([domain, size, f"decayed - {baseline}", text, f"{len(shared)}", cell])
    note = "Nats per token. Below 0, tuned weight decay is better. Paired by seed, with 95% intervals over seeds."
    header = ["domain", "MB", "compared", "text", "seeds", "difference"]
    return Table(header, rows, "Tuned weight decay, single models", note)


def raw_losses(finished: Study) -> list[tuple[str, ...]]:
    """Returns a row per model: domain, size, search, model, seed, and the losses on the domain and on general text."""
    rows: list[tuple[str, ...]] = []
    for entry in finished.entries:
        values = entry.values
        place = *(values.get(name, "") for name in ("domain", "size")), values.get("way", "decayed")
        if entry.record.stage == "export" and entry.name in ("single", "undecayed"):
            ends = (entry.result.losses[text].after.value for text in ("domain", "general"))
            rows.append((*place, entry.name, values["seed"], *(f"{end:.4f}" for end in ends)))
        elif entry.record.stage == "ensemble":
            own = [row for row in entry.result.rows if row.role not in ("member", "best")]
            rows += [
                (*place, row.name, "", *(f"{row.loss[t].value:.4f}" for t in ("domain", "general"))) for row in own
            ]
    return rows


def show(arguments: list[str]) -> None:
    """Prints the tables of a finished chain."""
    file, others = split_file("--csv", arguments)
    _, finished = read_finished(others)
    if file:
        write_csv(("domain", "size", "search", "model", "seed", "loss", "general_loss"), raw_losses(finished), file)
    print_tables(finished, "Small corpora", [losses(finished), shares_kept(finished), decay_gains(finished)])


def main() -> None:
    if sys.argv[1:2] == ["show"]:
        show(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["cut"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cut(given.data, given.out)


if __name__ == "__main__":
    main()
