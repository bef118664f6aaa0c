"""Whether enough text is held out to measure a loss on it, which is said before a training begins."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from adapt.console import log
from adapt.corpus.shared import FEWEST_DOCUMENTS
from adapt.runner import Done, Stage
from adapt.stage.text.prepare import Prepare, Prepared
from adapt.stage.text.prepare_texts import PrepareTexts

WANTED_SHARE, WANTED_MOST = 0.1, 30
"""The advice holds out this share of the documents, but no more documents than this. 30 give a sound interval."""


def warn_of_unmeasured(name: str, corpora: Mapping[str, Stage[Prepared]], done: Done) -> None:
    """Says that a training cannot be measured well, and which `corpus.heldout_fraction` would change that.

    Says nothing where no text is to be held out: the share is 0, or text of other files is measured, as in TAPT.

    Args:
        name: of the training.
        corpora: the texts of the training, by source.
        done: the finished stages, with these texts.
    """
    from adapt.evaluate.statistics import FEWEST

    shares = [_share(stage) for stage in corpora.values()]
    texts = [done[stage] for stage in corpora.values()]
    held_out = sum(text.result.heldout_documents for text in texts)
    if not all(shares) or held_out >= FEWEST:
        return
    trained = [text.result.train_documents for text in texts]
    documents = None if None in trained else held_out + sum(count or 0 for count in trained)
    of_all = "its documents" if documents is None else f"its {documents:,} documents"
    if held_out < FEWEST_DOCUMENTS:
        number = f"{held_out} of {of_all} is" if held_out else f"none of {of_all} is"
        found = f"{name}: nothing will be measured: {number} held out (corpus.heldout_fraction {shares[0]:g})"
    else:
        found = (
            f"{name}: only {held_out} of {of_all} are held out (corpus.heldout_fraction {shares[0]:g}), so that losses"
            " have no interval"
        )
    log(f"{found}; {_fix(shares[0], documents, [text.path for text in texts])}")


def documents_to_measure(documents: int) -> int:
    """How many of a text's documents should be held out."""
    return max(FEWEST_DOCUMENTS, min(round(WANTED_SHARE * documents), WANTED_MOST))


def _share(stage: Stage[Prepared]) -> float:
    """The share of a text that is held out."""
    if isinstance(stage, Prepare):
        return stage.files.corpus.heldout_fraction
    return stage.heldout_fraction if isinstance(stage, PrepareTexts) else 0.0


def _fix(share: float, documents: int | None, folders: Sequence[Path]) -> str:
    """Says which share would hold out enough, as the texts themselves tell."""
    from adapt.corpus.screening.heldout import share_holding

    none = "set it to 0 to train without a measurement"
    if documents is None:  # the text is streamed: how many documents it has is not known
        return f"set corpus.heldout_fraction to {min(10 * share, 0.5):.2g} or more, or {none}"
    found = share_holding(folders, documents_to_measure(documents))
    if found is None:
        return f"give it more text, or {none}"
    return f"set corpus.heldout_fraction to {found.share:g}, which holds out {found.documents}, or {none}"
