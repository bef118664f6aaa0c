"""Cuts the texts of the study of small corpora, and prints its tables: losses of all recipes with intervals and costs.

python -m benchmarks.small_corpus_study cut --data data --out /tmp/small
python -m benchmarks.small_corpus_study show benchmarks/small_corpus_study.yaml [--csv FILE] [options of dontstop chain]

The option --csv writes the losses of all models and trials to a file.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from adapt.evaluate.measurements import LossChange
from adapt.show.blocks import NONE, Cell, Table
from adapt.show.report.study import Study
from adapt.stage.ensemble import EnsembleRow
from adapt.statistics.comparison import paired
from adapt.tuning.job_trial import values_shown
from benchmarks.finished_chain import print_tables, read_finished, split_file, write_csv

CORPORA = {"cs": "cs_acl_abstracts", "pubmed": "biomed_pubmed"}
NAMES_OF_CORPORA = {"cs": "computer science", "pubmed": "PubMed"}
WAYS = ("plain", "decayed")
COLUMNS = ("domain", "size", "search", "model", "seed", "loss", "general_loss", "change", "low", "high")
"""Columns of the file of losses. The last three are the difference of the loss on the domain from that of the best
single model, and its 95% interval over documents; empty for single models."""
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


def summary(rows: Sequence[Mapping[str, str]]) -> Table:
    """Makes the table of docs/guide/small-corpora.md: a row per domain and size, with the usual weight decay.

    A model's share of the ensemble's gain is the difference of its loss from that of the best single model, divided by
    the ensemble's difference.

    Args:
        rows: rows of the file that --csv writes, keyed by column.
    """
    made: list[list[Cell | str]] = []
    kept: list[tuple[float, ...]] = []
    for domain, size in dict.fromkeys((row["domain"], row["size"]) for row in rows):
        own = [row for row in rows if (row["domain"], row["size"]) == (domain, size)]
        combined = {row["model"]: row for row in own if row["search"] == "plain" and not row["seed"]}
        singles = {
            way: {r["seed"]: float(r["loss"]) for r in own if (r["search"], r["model"]) == (way, "single")}
            for way in WAYS
        }
        if "ensemble" not in combined or len(singles["decayed"]) < len(singles["plain"]):
            continue
        gain = float(combined["ensemble"]["change"])
        kept.append(tuple(float(combined[name]["change"]) / gain for name in ("weight average", "student")))
        decay = paired([loss - singles["plain"][seed] for seed, loss in singles["decayed"].items()])
        made.append(
            [
                f"{NAMES_OF_CORPORA[domain]}, {size} MB",
                f"{float(combined['base']['loss']):.3f}",
                f"{min(singles['plain'].values()):.3f}",
                Cell(*_signed(*(float(combined["ensemble"][name]) for name in ("change", "low", "high")))),
                *(f"{share:.0%}" for share in kept[-1]),
                Cell(*_signed(decay.difference, decay.low, decay.high)),
            ]
        )
    if kept:
        means = (f"{sum(shares) / len(kept):.0%}" for shares in zip(*kept, strict=True))
        made.append(["mean", *[NONE] * 3, *means, NONE])
    header = ["text", "before", "best single model", "mean of predictions", "weight average keeps", "student keeps"]
    return Table([*header, "searched weight decay"], made, "Many models, one model")


def _signed(value: float, low: float | None, high: float | None) -> tuple[str, str]:
    ends = "" if low is None or high is None else f"{low:+.3f} to {high:+.3f}"
    return f"{value:+.3f}", ends


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
                cell = Cell(*_signed(gap.difference, gap.low, gap.high))
                rows.append([domain, size, f"decayed - {baseline}", text, f"{len(shared)}", cell])
    note = "Nats per token. Below 0, tuned weight decay is better. Paired by seed, with 95% intervals over seeds."
    header = ["domain", "MB", "compared", "text", "seeds", "difference"]
    return Table(header, rows, "Tuned weight decay, single models", note)


def raw_losses(finished: Study) -> list[tuple[str, ...]]:
    """Returns a row per model and per trial of the searches, with the values of `COLUMNS`."""
    rows: list[tuple[str, ...]] = []
    for entry in finished.entries:
        values = entry.values
        place = *(values.get(name, "") for name in ("domain", "size")), values.get("way", "decayed")
        if entry.record.stage == "export" and entry.name in ("single", "undecayed"):
            ends = (entry.result.losses[text].after.value for text in ("domain", "general"))
            rows.append((*place, entry.name, values["seed"], *(f"{end:.4f}" for end in ends), "", "", ""))
        elif entry.record.stage == "search":
            for trial in filter(lambda each: each.figures, entry.result.trials):  # failed trials have no losses
                name, loss = f"trial: {values_shown(trial.values)}", trial.figures["losses.domain.after"].value
                rows.append((*place, name, "", f"{loss:.4f}", "", "", "", ""))
        elif entry.record.stage == "ensemble":
            own = [row for row in entry.result.rows if row.role not in ("member", "best")]
            for row in own:
                change = row.change["domain"]
                figures = (
                    *(row.loss[text].value for text in ("domain", "general")),
                    change.value,
                    change.low,
                    change.high,
                )
                rows.append((*place, row.name, "", *("" if of is None else f"{of:.4f}" for of in figures)))
    return rows


def show(arguments: list[str]) -> None:
    """Prints the tables of a finished chain."""
    file, others = split_file("--csv", arguments)
    _, finished = read_finished(others)
    if file:
        write_csv(COLUMNS, raw_losses(finished), file)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in raw_losses(finished)]
    print_tables(finished, "Small corpora", [losses(finished), summary(rows), decay_gains(finished)])


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
