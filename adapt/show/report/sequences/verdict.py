"""Sequences in words: which method forgets less and scores higher, no surer than the figures allow."""

from collections.abc import Mapping
from dataclasses import replace

from adapt.show.blocks import FindingBlock
from adapt.show.report.sequences.compared import MEASURES, Measure, Paired, compare_methods
from adapt.show.report.sequences.runs import Sequences
from adapt.statistics.seeds import spread
from adapt.statistics.words import out_of_reach, p_value

Compared = Mapping[str, Mapping[str, Paired]]
FORGETS = {"forgetting": ("Forgets", " points"), "loss_forgetting": ("Forgets, on held-out loss,", " nats")}
AVERAGE = {"average": ("Average score", ""), "loss_average": ("Average held-out loss", " nats")}
"""The figures that sentences tell, with subject and unit: what scores, or else losses, forget; and both averages."""
_BY_NAME = {measure.name: measure for measure in MEASURES}


def sequence_verdicts(sequences: Sequences) -> list[FindingBlock]:
    """A finding for each method, against the baseline if there is one; what so few seeds cannot show is said once."""
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
    tone = decided.pop() if len(decided) == 1 else "open" if tones else "plain"  # better in one, worse in another: open
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
    """Says how high a figure is, as `+1.9 points (95% CI +0.8 to +3.1; 6 seeds)`."""
    over_seeds = spread(sequences.values(method, measure.name))
    interval = ""
    if over_seeds.low is not None and over_seeds.high is not None:
        interval = f"95% CI {measure.text(over_seeds.low)} to {measure.text(over_seeds.high)}; "
    seeds = f"{over_seeds.seeds} seed{'' if over_seeds.seeds == 1 else 's'}"
    return f"{measure.text(over_seeds.mean)}{unit} ({interval}{seeds})"


def _difference(measure: Measure, paired: Paired) -> str:
    """Says what a method changes, as `difference +0.7, 95% CI +0.1 to +1.3, p = .031 (Holm .062)`."""
    comparison = paired.comparison
    text = f"difference {measure.change(comparison.difference)}"
    if comparison.p is None:
        why = "of seeds that do not vary" if comparison.is_constant else "of one seed"
        return f"{text}, {why}, so nothing can be said of chance"
    if comparison.low is not None and comparison.high is not None:
        text += f", 95% CI {measure.change(comparison.low)} to {measure.change(comparison.high)}"
    text += f", {p_value(comparison.p)}"
    if paired.adjusted is not None and paired.adjusted != comparison.p:
        text += f" (Holm {p_value(paired.adjusted, bare=True)})"
    if paired.significant:
        return text
    return f"{text}: {_limit(paired) or 'may be chance'}"


def _limit(paired: Paired) -> str:
    """Says what so few seeds cannot show; empty if they could."""
    return out_of_reach(paired.comparison, paired.recipes, "methods")


def sequence_warnings(sequences: Sequences) -> list[FindingBlock]:
    """Methods with fewer runs than others, and what was warned of while they ran."""
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
