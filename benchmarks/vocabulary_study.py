"""Prints the results of a finished study of vocabularies, as the Markdown tables of docs/science/vocabulary.md.

The first tables show, for each way to teach a model the domain's words, bits per byte of held-out text by compute, and
how much shorter tokenized texts become. The other tables have scores, with gains over the base model and over DAPT
paired by seed, and the share of DAPT's gain that new words give without DAPT.

python -m benchmarks.vocabulary_study benchmarks/vocabulary_study.yaml [options of dontstop chain]
"""

import sys

import numpy as np

from adapt.show.blocks import NONE, Cell, Table
from adapt.show.report.study import Study
from adapt.stage.export_model import Adapted
from adapt.statistics.comparison import paired
from adapt.statistics.seeds import CONFIDENCE
from adapt.vocabulary.vocabulary_results import Extended
from benchmarks.finished_chain import print_tables, read_finished
from benchmarks.selection_study import Found, gains

BASE, DAPT = "base", "DAPT"
SAMPLES = 10_000


def losses(finished: Study) -> Table | None:
    """Makes the table of bits per byte before training and after each budget, by domain and way to teach words."""
    found: dict[tuple[str, str], dict[str, Adapted]] = {}
    for entry in finished.entries:
        if entry.record.stage == "export":
            values = entry.values
            found.setdefault((values["domain"], values["way"]), {})[values["budget"]] = entry.result
    if not found:
        return None
    budgets = list(dict.fromkeys(budget for by_budget in found.values() for budget in by_budget))
    rows: list[list[Cell | str]] = []
    for (domain, way), by_budget in found.items():
        first = next(iter(by_budget.values()))
        cells = [_after(by_budget[budget]) if budget in by_budget else Cell(NONE) for budget in budgets]
        rows.append([domain, way, f"{first.parameters:,}", _bits(first.losses["domain"].bits_per_byte_before), *cells])
    note = "Bits per byte of held-out text of the domain. Below: tokens trained on, and bits per byte of general text."
    return Table(["domain", "way", "parameters", "before", *budgets], rows, "Loss by compute", note)


def _after(adapted: Adapted) -> Cell:
    general = adapted.losses.get("general")
    small = f"{adapted.tokens:,}; {_bits(general.bits_per_byte_after if general else None)}"
    return Cell(_bits(adapted.losses["domain"].bits_per_byte_after), small)


def _bits(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def saved(finished: Study) -> Table | None:
    """Makes the table of how much shorter tokenized texts become, with one row per domain."""
    rows: dict[str, list[Cell | str]] = {}
    for entry in finished.entries:
        if entry.record.stage == "extend":
            extended: Extended = entry.result
            rows[entry.values["domain"]] = [
                entry.values["domain"],
                f"{extended.words:,}",
                f"{extended.fertility_before:.3f}",
                f"{extended.fertility_after:.3f}",
                f"{extended.length_saved:.1%}",
            ]
    header = ["domain", "words", "tokens per word before", "after", "shorter by"]
    return Table(header, list(rows.values()), "How much shorter texts become") if rows else None


def scores(finished: Study) -> Found:
    """Returns test scores, keyed by recipe, domain and seed."""
    found = Found()
    for entry in finished.entries:
        if entry.record.stage == "finetune":
            values = entry.values
            by_domain = found.scores.setdefault(values["recipe"], {})
            by_domain.setdefault(values["domain"], {})[values["seed"]] = entry.record.metrics["score"]
    return found


def shares(found: Found) -> Table | None:
    """Makes the table of each recipe's share of DAPT's gain. Returns None if DAPT's gain is uncertain."""
    if not {BASE, DAPT} <= found.scores.keys():
        return None
    rows: list[list[Cell | str]] = []
    for recipe in found.scores:
        if recipe not in (BASE, DAPT):
            rows.append([recipe, *(_share(found, recipe, domain) for domain in found.tasks)])
    note = (
        f"Mean gain over {BASE} as a share of the gain of {DAPT}. The 95% interval resamples seeds. Left out where the "
        f"interval of the gain of {DAPT} includes 0."
    )
    return Table(["recipe", *found.tasks], rows, f"Share of the gain of {DAPT}", note)


def _share(found: Found, recipe: str, domain: str) -> Cell:
    gained, by_dapt = (found.differences(name, BASE, domain) for name in (recipe, DAPT))
    seeds = [seed for seed in gained if seed in by_dapt]
    low = paired(list(by_dapt.values())).low if by_dapt else None
    if not seeds or low is None or low <= 0:
        return Cell(NONE)
    pairs = np.array([(gained[seed], by_dapt[seed]) for seed in seeds])
    drawn = pairs[np.random.default_rng(0).integers(0, len(seeds), (SAMPLES, len(seeds)))].mean(1)
    ends = np.quantile(drawn[:, 0] / drawn[:, 1], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    mean = pairs.mean(0)
    return Cell(f"{mean[0] / mean[1]:.0%}", f"{ends[0]:.0%} to {ends[1]:.0%}")


def main() -> None:
    chain, finished = read_finished(sys.argv[1:])
    if not finished.entries:
        raise SystemExit(f"nothing of {chain.name} has run: {len(finished.missing)} stages are left")
    found = scores(finished)
    against = [gains(found, baseline) for baseline in (BASE, DAPT) if baseline in found.scores]
    tables = [losses(finished), saved(finished), *against, shares(found)]
    print_tables(finished, "Vocabularies", tables)


if __name__ == "__main__":
    main()
