"""How many measured documents a model was trained on: found by holding the keys of both against each other.

It should be 0, and this is what shows it: nothing here relies on how text was kept apart when it was prepared.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from adapt.console import log
from adapt.corpus.heldout import Measured
from adapt.runner import Record
from adapt.runner.record import load_record


def overlaps(corpora: Mapping[str, Path], training: Record | None) -> dict[str, int | None]:
    """For each corpus `{name}_overlap`: how many of its held-out documents stand in what a model was trained on.

    Args:
        corpora: folders of prepared corpora that are measured, by name.
        training: the record of what made the model, `train` or `export`; with it come the trainings it began with.

    Returns:
        None for each where that is not known: there is no record, a folder is gone, or text was streamed, which leaves
        no keys behind.
    """
    trained = list(_texts(training)) if training else [None]
    folders = [folder for folder in trained if folder]
    if len(folders) < len(trained):
        return {f"{name}_overlap": None for name in corpora}
    found = {name: Measured.of([folder]).count_in(folders) for name, folder in corpora.items()}
    for name, number in found.items():
        if number:
            log(f"warning: the model was trained on {number} of the documents that are measured as {name}")
    return {f"{name}_overlap": number for name, number in found.items()}


def _texts(record: Record | None) -> Iterator[Path | None]:
    """The prepared texts that a model was trained on, of all trainings up to it."""
    if record is None:
        yield None
        return
    for name, needed in record.inputs.items():
        if record.stage == "train" and needed["stage"] == "prepare":
            text = load_record(Path(needed["path"]))
            yield text.path if text and not text.what.get("streaming") else None
        elif needed["stage"] == "train" and name in ("training", "(start)"):
            yield from _texts(load_record(Path(needed["path"])))
