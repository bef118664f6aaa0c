"""Prints the results of finished chains of domain sequences, as Markdown tables (docs/science/das.md, forgetting.md).

The first tables have means over seeds, where the value of a seed is the mean over its orders of domains. The next
tables have the differences of every method from the baseline and from every other method that learns domains in
sequence, paired by seed. The last tables have scores by task, and the results of every run, from which all tables can
be recomputed.

python -m benchmarks.sequences benchmarks/das_five.yaml [options of dontstop chain]
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

from adapt.show.blocks import Section, Table
from adapt.show.renderers import render_markdown
from adapt.show.report.sequence_runs import Sequences, compare_methods, sequences_of
from adapt.show.report.sequence_tables import by_task, every_run, methods, sequence_costs, sequence_differences
from benchmarks.finished_chain import read_finished


def tables(sequences: Sequences) -> list[Table]:
    """Makes all tables, and returns the tables that are not empty."""
    found = (
        methods(sequences, compare_methods(sequences)),
        *(sequence_differences(each, compare_methods(each)) for each in _baselines(sequences)),
        by_task(sequences),
        sequence_costs(sequences),
        every_run(sequences),
    )
    return [table for table in found if table]


def _baselines(sequences: Sequences) -> Iterator[Sequences]:
    """Yields the study once per sequential method, with this method as baseline. Each pair of methods occurs once."""
    left = dict(sequences.methods)
    for name in sequences.methods:
        if sequences.mode(name) == "continual":
            yield replace(sequences, methods=left, baseline=name)
            left = {other: runs for other, runs in left.items() if other != name}


def main() -> None:
    chain, found = read_finished(sys.argv[1:])
    sequences = sequences_of(found)
    if not sequences.methods:
        raise SystemExit(f"no sequence of {chain.name} has finished: {len(found.missing)} stages have not run")
    runs = sum(map(len, sequences.methods.values()))
    about = f"{runs} sequences, {len(found.missing)} stages not run"
    print(render_markdown(chain.name, about, [Section("Sequences", tables(sequences))]))


if __name__ == "__main__":
    main()
