"""Warnings about problems that make scores less reliable."""

from collections.abc import Iterator
from typing import Any

from adapt.runner.record import Record
from adapt.show.blocks import FindingBlock
from adapt.show.report.study import Entry, Study
from adapt.show.report.task_runs import Results, Row


def warnings(study: Study, results: Results) -> list[FindingBlock]:
    """Lists warnings about problems that make the figures less reliable. The most serious warnings come first."""
    findings = (
        [FindingBlock("Not run", f"{len(study.missing)} stages are missing from this report.")] if study.missing else []
    )
    findings += [FindingBlock("Transductive", _transductive(results))] if results.transductive else []
    for row in results.rows:
        findings += [FindingBlock(row.name, text) for text in (*_of_data(row), *_of_runs(row, results))]
    findings += [FindingBlock(entry.name, f"{lack}.") for entry, lack in _cut_short(study)]
    findings += [FindingBlock(entry.name, f"{fault}.") for entry, fault in _read_badly(study)]
    findings += [FindingBlock("Not as recorded", text) for text in results.warnings]
    findings += [FindingBlock("Versions", text) for text in _versions(study)]
    findings += [FindingBlock("Chain", text) for text in study.warnings]
    return [FindingBlock(finding.head, finding.text, "warning") for finding in findings]


def _transductive(results: Results) -> str:
    names = ", ".join(results.label(recipe) for recipe in results.recipes if recipe in results.transductive)
    return f"{names}: pre-training has read the text of dev and test, so scores may be higher than on unseen text."


def _cut_short(study: Study) -> Iterator[tuple[Entry, str]]:
    """Yields trainings whose text ended before their last step, each with a description of the missing text."""
    for entry in study.entries:
        if entry.record.stage == "export" and (lack := entry.record.metrics.get("cut_short")):
            yield entry, lack


def _read_badly(study: Study) -> Iterator[tuple[Entry, str]]:
    """Yields trainings on text that does not suit the tokenizer, each with a description of the problem."""
    for entry in study.entries:
        if entry.record.stage == "export":
            yield from ((entry, fault) for fault in entry.record.metrics.get("text_faults", []))


def _of_data(row: Row) -> Iterator[str]:
    if not row.task_record:
        return
    known = row.task_record.metrics
    sizes = known.get("examples", {})
    if leaked := known.get("leaks", {}).get("test_in_train"):
        yield f"{leaked} of {sizes.get('test', '?')} test texts are also in train; see the scores without them."
    if leaked := known.get("leaks", {}).get("dev_in_train"):
        yield f"{leaked} of {sizes.get('dev', '?')} dev texts are also in train, so the best epoch may come too late."
    yield from (f"{remark}." for remark in (*known.get("label_warnings", []), *known.get("text_faults", [])))
    if not known.get("label_warnings") and (unseen := known.get("unseen_classes")):
        yield f"classes of dev or test that train does not have: {', '.join(map(str, unseen))}."
    if conflicting := known.get("conflicting"):
        yield f"{conflicting} train texts occur again with another label."
    for split, count in _counts(known.get("empty_texts")).items():
        yield f"{count} texts of {split} are empty."


def _of_runs(row: Row, results: Results) -> Iterator[str]:
    most = max(len(group.entries) for group in row.groups.values())
    for recipe, group in row.groups.items():
        label = results.label(recipe)
        if len(group.entries) < most:
            yield f"{label} has {len(group.entries)} of {most} seeds."
        degenerate = [str(metrics["seed"]) for metrics in group.metrics if metrics.get("degenerate")]
        if degenerate:
            yield f"{label}, seed {', '.join(degenerate)}: the model predicts one class only. It counts as well."
    if most == 1:
        yield "each recipe has one seed, so the variation between fine-tuning runs is not measured."
    first = next(iter(row.groups.values())).metrics[0]
    for split, count in _counts(first.get("truncated")).items():
        size = row.task_record.metrics.get("examples", {}).get(split) if row.task_record else None
        yield f"{count}{f' of {size}' if size else ''} texts of {split} were cut to the model's length."


def _counts(values: Any) -> dict[str, int]:
    """Returns counts keyed by split, without zeros. A single number is the count of the train split."""
    by_split = values if isinstance(values, dict) else {"train": values or 0}
    return {str(split): count for split, count in by_split.items() if count}


def _versions(study: Study) -> Iterator[str]:
    for package, versions in versions_of([entry.record for entry in study.entries]).items():
        if len(versions) > 1:
            yield f"stages ran with different versions of {package}: {', '.join(versions)}."


def versions_of(records: list[Record]) -> dict[str, list[str]]:
    """Returns the versions of each package that the stages ran with, keyed by package."""
    versions: dict[str, list[str]] = {}
    for record in records:
        for package, version in record.packages.items():
            if version not in versions.setdefault(package, []):
                versions[package].append(version)
    return versions
