"""What finished chains of domain sequences found, as the Markdown tables of docs/science/replication.md.

Means over seeds, each the mean over its orders; every method against the baseline, then against each other method
that learns domain after domain, paired by seed; scores by task; and the figures of every run, from which all these can
be computed again.

python -m benchmarks.sequences benchmarks/das_five.yaml [options as of jobs/chain.py]
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

from adapt.chain.chain_file import read_chain, read_command
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import build_chain, study
from adapt.show.blocks import Section, Table
from adapt.show.pages import render_markdown
from adapt.show.report.sequence_runs import Sequences, compare_methods, sequences_of
from adapt.show.report.sequence_tables import by_task, every_run, methods, sequence_costs, sequence_differences


def tables(sequences: Sequences) -> list[Table]:
    """All of them, those with nothing to show left out."""
    found = (
        methods(sequences, compare_methods(sequences)),
        *(sequence_differences(each, compare_methods(each)) for each in _baselines(sequences)),
        by_task(sequences),
        sequence_costs(sequences),
        every_run(sequences),
    )
    return [table for table in found if table]


def _baselines(sequences: Sequences) -> Iterator[Sequences]:
    """The same with each method in turn as the baseline, without those that have been."""
    left = dict(sequences.methods)
    for name in sequences.methods:
        if sequences.mode(name) == "continual":
            yield replace(sequences, methods=left, baseline=name)
            left = {other: runs for other, runs in left.items() if other != name}


def main() -> None:
    command = read_command(["report", *sys.argv[1:]])
    recipe = read_chain(command.file, command.let, command.common)
    found = study(recipe.name, recipe.baseline, build_chain(expand_chain(recipe, command.only)))
    sequences = sequences_of(found)
    if not sequences.methods:
        raise SystemExit(f"no sequence of {command.file} has finished: {len(found.missing)} stages have not run")
    runs = sum(map(len, sequences.methods.values()))
    about = f"{runs} sequences, {len(found.missing)} stages not run"
    print(render_markdown(recipe.name, about, [Section("Sequences", tables(sequences))]))


if __name__ == "__main__":
    main()
