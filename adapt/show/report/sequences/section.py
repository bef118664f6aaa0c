"""The section on sequences of domains: tables by method, and drawings of what is forgotten."""

from adapt.show.blocks import Block, Figures, Folded, TextBlock
from adapt.show.report.sequences import figures as sequence_figures
from adapt.show.report.sequences import tables as sequence_tables
from adapt.show.report.sequences.compared import compare_methods
from adapt.show.report.sequences.costs import sequence_costs
from adapt.show.report.sequences.front import sequence_front
from adapt.show.report.sequences.matrices import matrices
from adapt.show.report.sequences.runs import Sequences


def section(sequences: Sequences) -> list[Block]:
    """The section's blocks: tables and drawings; none if there are no sequences."""
    if not sequences.methods:
        return []
    compared = compare_methods(sequences)
    tables = (
        sequence_tables.methods(sequences, compared),
        sequence_tables.by_task(sequences),
        sequence_tables.sequence_differences(sequences, compared),
        sequence_front(sequences),
        sequence_costs(sequences),
    )
    blocks: list[Block] = [table for table in tables if table]
    blocks.append(Folded("The figures of every run", [sequence_tables.every_run(sequences)]))
    first, *others = [_of_order(sequences, order) for order in sequences.orders] or [[]]
    titles = [_named(sequences, order) for order in sequences.orders]
    blocks += [TextBlock(f"In order {titles[0]}."), *first] if first else []
    blocks += [Folded(f"In order {title}", inner) for title, inner in zip(titles[1:], others, strict=True) if inner]
    return [*blocks, *(_matrices(name, sequences) for name in sequences.methods if sequences.mode(name) == "continual")]


def _named(sequences: Sequences, order: tuple[str, ...]) -> str:
    name = sequences.orders[order]
    return f"{name}: {' → '.join(order)}" if name else " → ".join(order)


def _of_order(sequences: Sequences, order: tuple[str, ...]) -> list[Block]:
    blocks: list[Block] = []
    domains = sorted({domain for names in sequences.orders for domain in names})
    if drawings := sequence_figures.losses(sequences, order, domains):
        about = "Held-out loss after each domain, mean over seeds; dashed until a text's own domain is learnt (dot)."
        blocks += [TextBlock(about), Figures(drawings, sequence_figures.legend(sequences, domains))]
    noted = [table for name in sequences.methods for table in sequence_tables.noted(name, sequences.of(name, order))]
    return [*blocks, Folded("What methods noted", noted)] if noted else blocks


def _matrices(method: str, sequences: Sequences) -> Folded:
    tables = [
        table
        for order in sequences.orders
        if (runs := sequences.of(method, order))
        for table in matrices(runs, _named(sequences, order))
    ]
    return Folded(f"{method}: scores and losses after each domain", tables)
