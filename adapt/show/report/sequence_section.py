"""Sequences of domains in the report: sentences about which method forgets less and scores higher, and the section."""

from collections.abc import Mapping
from dataclasses import replace

from adapt.show.blocks import Block, Figures, FindingBlock, Folded, TextBlock, worded_interval
from adapt.show.report.sequence_figures import legend, losses, sequence_front
from adapt.show.report.sequence_runs import MEASURES, Measure, Paired, Sequences, compare_methods
from adapt.show.report.sequence_tables import (
    by_task,
    every_run,
    matrices,
    methods,
    noted,
    sequence_costs,
    sequence_differences,
)
from adapt.statistics.comparison import out_of_reach, p_value
from adapt.statistics.seeds import spread

Compared = Mapping[str, Mapping[str, Paired]]
FORGETS = {"forgetting": ("Forgets", " points"), "loss_forgetting": ("Forgets, in held-out loss,", " nats per token")}
AVERAGE = {"average": ("Average score", ""), "loss_average": ("Average held-out loss", " nats per token")}
"""Figures in the verdict, with the subject and unit of their sentences: FORGETS has forgetting (of scores, else of
losses), and AVERAGE has both averages."""
_BY_NAME = {measure.name: measure for measure in MEASURES}


def sequence_verdicts(sequences: Sequences) -> list[FindingBlock]:
    """Makes a finding per method, compared with the baseline if there is a baseline.

    A lack of seeds is mentioned once.
    """
    compared = compare_methods(sequences)
    others = [name for name in sequences.methods if name != sequences.baseline]
    findings = [_finding(name, sequences, compared) for name in others or sequences.methods]
    limits = {
        limit: None
        for measured in compared.values()
        for paired in measured.values()
        if not paired.significant and (limit := _limit(paired)) and any(limit in each.text for each in findings)
    }
    if len(others) < 2:
        return findings
    for limit in limits:
        findings = [replace(each, text=each.text.replace(limit, "too few seeds")) for each in findings]
    return [*findings, *(FindingBlock("Seeds", f"{limit[0].upper()}{limit[1:]}.", "warning") for limit in limits)]


def _finding(method: str, sequences: Sequences, compared: Compared) -> FindingBlock:
    forgets, averages = ([name for name in each if sequences.values(method, name)] for each in (FORGETS, AVERAGE))
    names = [*forgets[:1], *averages]
    text = " ".join(_sentence(method, _BY_NAME[name], sequences, compared) for name in names)
    tones = {compared[name][method].tone for name in names if method in compared[name]}
    decided = tones - {"open"}
    # The tone is open if one figure is better and another is worse.
    tone = decided.pop() if len(decided) == 1 else "open" if tones else "plain"
    head = f"{method} against {sequences.baseline}" if tones else method
    return FindingBlock(head, text or "Nothing has been measured.", tone)


def _sentence(method: str, measure: Measure, sequences: Sequences, compared: Compared) -> str:
    subject, unit = (FORGETS | AVERAGE)[measure.name]
    text = f"{subject} {_level(method, measure, sequences, unit)}"
    if method in compared[measure.name]:
        baseline = sequences.baseline or ""
        difference = _difference(measure, compared[measure.name][method])
        text += f", {baseline} {_level(baseline, measure, sequences)}; {difference}"
    return f"{text}."


def _level(method: str, measure: Measure, sequences: Sequences, unit: str = "") -> str:
    """Formats the mean of a figure with its interval, as `+1.9 points (95% CI +0.8 to +3.1; 6 seeds)`."""
    over_seeds = spread(sequences.values(method, measure.name))
    ends = worded_interval(over_seeds.low, over_seeds.high, measure.text, "95% CI ")
    seeds = f"{over_seeds.seeds} seed{'' if over_seeds.seeds == 1 else 's'}"
    return f"{measure.text(over_seeds.mean)}{unit} ({ends}{'; ' if ends else ''}{seeds})"


def _difference(measure: Measure, paired: Paired) -> str:
    """Formats the difference from the baseline, as `difference +0.7, 95% CI +0.1 to +1.3, p = .031 (Holm .062)`."""
    comparison = paired.comparison
    text = f"difference {measure.change(comparison.difference)}"
    if comparison.p is None:
        why = "seeds whose values do not vary" if comparison.is_constant else "one seed"
        return f"{text}; significance cannot be tested with {why}"
    text += worded_interval(comparison.low, comparison.high, measure.change, ", 95% CI ")
    text += f", {p_value(comparison.p)}"
    if paired.adjusted is not None and paired.adjusted != comparison.p:
        text += f" (Holm {p_value(paired.adjusted, bare=True)})"
    if paired.significant:
        return text
    return f"{text}: {_limit(paired) or 'may be chance'}"


def _limit(paired: Paired) -> str:
    """Describes that there are too few seeds for significance. The text is empty if there are enough seeds."""
    return out_of_reach(paired.comparison, paired.recipes, "methods")


def sequence_warnings(sequences: Sequences) -> list[FindingBlock]:
    """Warns of methods that have fewer runs than others, and repeats the warnings of the methods' runs."""
    continual = {name: runs for name, runs in sequences.methods.items() if sequences.mode(name) == "continual"}
    most = max(map(len, continual.values()), default=0)
    findings = []
    for name, runs in continual.items():
        if len(runs) < most:
            findings.append(FindingBlock(name, f"{len(runs)} of {most} sequences have finished.", "warning"))
        if texts := [warning for run in runs for warning in run.warnings]:
            warned = sum(bool(run.warnings) for run in runs)
            findings.append(
                FindingBlock(
                    name,
                    f"{len(texts)} warnings in {warned} of {len(runs)} sequences, the first: {texts[0]}",
                    "warning",
                )
            )
    return findings


def section(sequences: Sequences) -> list[Block]:
    """Makes the blocks of the section: tables and drawings. The list is empty if the study has no sequences."""
    if not sequences.methods:
        return []
    compared = compare_methods(sequences)
    tables = (
        methods(sequences, compared),
        by_task(sequences),
        sequence_differences(sequences, compared),
        sequence_front(sequences),
        sequence_costs(sequences),
    )
    blocks: list[Block] = [table for table in tables if table]
    blocks.append(Folded("The figures of every run", [every_run(sequences)]))
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
    if drawings := losses(sequences, order, domains):
        about = "Held-out loss after each domain, mean over seeds; dashed until a text's own domain is learnt (dot)."
        blocks += [TextBlock(about), Figures(drawings, legend(sequences, domains))]
    tables = [table for name in sequences.methods for table in noted(name, sequences.of(name, order))]
    return [*blocks, Folded("What methods noted", tables)] if tables else blocks


def _matrices(method: str, sequences: Sequences) -> Folded:
    tables = [
        table
        for order in sequences.orders
        if (runs := sequences.of(method, order))
        for table in matrices(runs, _named(sequences, order))
    ]
    return Folded(f"{method}: scores and losses after each domain", tables)
