"""Finds and reads the files of generated blocks.

Imports neither ray nor torch, because `adapt.stage.budget` uses this module.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

BLOCKS, FIGURES_FILE = "blocks", "figures.json"


@dataclass(frozen=True)
class MadeFigures:
    """Number and size of the generated texts of one block or of all blocks, and the generation time."""

    texts: int = 0
    tokens: int = 0
    """Number of generated tokens."""
    cut: int = 0
    """Number of texts that ended because they reached the maximum length."""
    bytes: int = 0
    """Size of the texts in UTF-8 [bytes]."""
    seconds: float = 0.0
    """Time that the actors took to make the blocks, without loading the model [s]."""

    def plus(self, other: "MadeFigures") -> "MadeFigures":
        """Returns the counts and times of this object plus those of `other`."""
        values = zip(asdict(self).items(), asdict(other).values(), strict=True)
        return MadeFigures(**{name: one + more for (name, one), more in values})


def files_of_block(folder: Path, name: str) -> tuple[Path, Path]:
    """Returns the paths of the two files of a block: texts, and counts (`MadeFigures`). Counts are written last."""
    return folder / BLOCKS / f"{name}.jsonl", folder / BLOCKS / f"{name}.json"


def known_figures(folder: Path, name: str) -> MadeFigures | None:
    """Returns the counts of a block (`MadeFigures`) from its file; None if the block is not finished."""
    text_file, figures_file = files_of_block(folder, name)
    with suppress(OSError, ValueError, TypeError):
        return MadeFigures(**json.loads(figures_file.read_text())) if text_file.is_file() else None
    return None


def spent_seconds(folder: Path) -> float:
    """Returns the time that actors have spent on the finished blocks of an unfinished stage [s]."""
    if (folder / FIGURES_FILE).is_file():
        with suppress(OSError, ValueError):
            return float(json.loads((folder / FIGURES_FILE).read_text())["seconds"])
    made = (known_figures(folder, file.stem) for file in (folder / BLOCKS).glob("*.json"))
    return sum(figures.seconds for figures in made if figures)
