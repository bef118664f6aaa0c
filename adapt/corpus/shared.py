"""General text that is trained on too: which field reads the same files, and what is left to measure of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from adapt.console import log
from adapt.corpus.files.manifest import Manifest
from adapt.errors import ConfigError, DataError

GENERAL = "evaluation.general_paths"
FEWEST_DOCUMENTS = 2
"""Measured documents that a text needs for its loss to be reported."""


def shared_with(general: Manifest, trained: Mapping[str, Sequence[Manifest]], heldout_fraction: float) -> str | None:
    """The field that reads a file of the general text too, wherever its copy lies; None where no field does.

    Args:
        general: the files that are measured on.
        trained: for each field that names text to train on, the files of its sources.
        heldout_fraction: what is left to measure of files that are trained on.

    Raises:
        ConfigError: all general text is the domain, or nothing of it would be left.
    """
    measured = _contents([general])
    field = next((field for field, sources in trained.items() if measured & _contents(sources)), None)
    if field is None:
        return None
    if field.startswith("corpus.") and measured == _contents(trained[field]):
        raise ConfigError(
            f"{GENERAL} and {field} read the same text, so the loss on general text would be that of the domain",
            f"give {GENERAL} text that is not of the domain, or remove it",
        )
    if not heldout_fraction:
        raise ConfigError(
            f"{GENERAL} and {field} read the same text, and corpus.heldout_fraction is 0, so all of it is trained on"
            " and none is left to measure",
            f"set corpus.heldout_fraction, or give {GENERAL} text of its own",
        )
    return field


def check_heldout(heldout: int, trained: int | None, field: str, folder: Path) -> None:
    """Refuses general text of which nothing is held out, once it is prepared.

    Args:
        heldout: documents.
        trained: documents.
        field: that trains on them.
        folder: of the prepared text.

    Raises:
        DataError: names the field that trains on the rest of it.
    """
    if not heldout:
        from adapt.corpus.screening.heldout import share_holding  # pyarrow, which plans do not need

        found = share_holding([folder], 1)
        more = f" to {found.share:g}" if found else ""
        raise DataError(
            f"{GENERAL} and {field} read the same text, and none of its {trained} documents falls"
            " into the share that is held out, so none is left to measure",
            f"raise corpus.heldout_fraction{more}, or give {GENERAL} text of its own",
        )


def warn_of_little(documents: int, text: str, fields: str) -> None:
    """Says that a text of which all is measured has too few documents for its loss to be reported.

    Args:
        documents: how many it has.
        text: what it is called.
        fields: what names its files.
    """
    if documents < FEWEST_DOCUMENTS:
        log(f"{text}: its loss will not be measured, because it has {documents} document; add text to {fields}")


def _contents(manifests: Sequence[Manifest]) -> set[str]:
    return {part.digest for manifest in manifests for part in manifest.parts}
