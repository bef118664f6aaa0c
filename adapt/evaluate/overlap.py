"""How many measured documents a model was trained on: found by holding the keys of both against each other.

It should be 0, and this is what shows it: nothing here relies on how text was kept apart when it was prepared.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from adapt.console import log
from adapt.corpus.screening.heldout import Measured
from adapt.runner import Record
from adapt.runner.outputs import check_content
from adapt.runner.record import load_record

MADE_BY = {"train": "start.training", "export": "training", "finetune": "start.training", "merge": "start.training"}
"""For each kind of stage that hands over a model, the input that is the training behind it; a merge has several."""


def overlaps(corpora: Mapping[str, Path], trained: Sequence[Path] | None) -> dict[str, int | None]:
    """For each corpus: how many of its held-out documents stand in what a model was trained on; None: not known.

    Args:
        corpora: folders of prepared corpora that are measured, by name.
        trained: folders of what the model was trained on, see `trained_on`.
    """
    if trained is None:
        return dict.fromkeys(corpora)
    for record in filter(None, map(load_record, trained)):
        check_content(record)
    counts = {name: Measured.of([folder]).count_in(trained) for name, folder in corpora.items()}
    for name, count in counts.items():
        if count:
            log(f"warning: the model was trained on {count} of the documents that are measured as {name}")
    return {**counts}


def trained_on(maker: Record | None) -> list[Path] | None:
    """Folders of the prepared texts that a model was trained on, in all trainings up to it.

    Args:
        maker: the record of what made the model, `train`, `export`, `finetune` or `merge`; with it come the trainings
            that this began with. None where there is no record.

    Returns:
        None where that is not known: a record is gone, text was streamed, which leaves no keys behind, or a model that
        was merged came from elsewhere.
    """
    if maker is None:
        return None
    texts: list[Path] = []
    for folder in _texts_of(maker):
        text = load_record(folder)
        if text is None or text.what.get("streaming"):
            return None
        texts.append(text.path)
    merged = [made for name, made in maker.inputs.items() if name.startswith("models.")]
    if len(merged) < len(maker.what.get("models", ())) and maker.stage == "merge":
        return None
    before = maker.inputs.get(MADE_BY.get(maker.stage, ""))
    for made in [*([before] if before else []), *(merged if maker.stage == "merge" else [])]:
        earlier = trained_on(load_record(Path(made["path"])))
        if earlier is None:
            return None
        texts += [text for text in earlier if text not in texts]
    return texts


def _texts_of(maker: Record) -> list[Path]:
    """What the stage itself trained on: `corpora` and `replay` of `adapt.stage.train.Train`."""
    if maker.stage != "train":
        return []
    return [
        Path(text["path"]) for name, text in maker.inputs.items() if name == "replay" or name.startswith("corpora.")
    ]
