"""What must leave a pool before anything of it is scored: evaluation text, measured text, and what is much like either.

Measured text is known twice: by a hash of each document, as everywhere (`adapt.corpus.screening.heldout`), and by its
runs of words, as evaluation text is (`adapt.corpus.screening.decontaminate`), so that near copies and large parts of it
leave too. Memory holds some 30 bytes a word of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.screening.clean import Sieve
from adapt.corpus.screening.decontaminate import evaluation_index
from adapt.corpus.screening.heldout import Measured
from adapt.select.pool import Pool

GENERAL = "(general)"
"""What measured text is called among the evaluation sets."""


@dataclass(frozen=True)
class MeasuredText:
    """A prepared corpus that is measured."""

    folder: Path
    """The folder of stage `prepare`."""
    manifest: Manifest
    corpus: CorpusConfig

    def texts(self) -> Iterator[str]:
        """The documents that are measured; the others may be trained on."""
        measured = Measured.of([self.folder])
        return (str(text) for text in Pool(self.manifest, self.corpus) if measured(text))


@dataclass(frozen=True)
class Guards:
    """What documents of a pool must pass."""

    sieve: Sieve
    evaluation_texts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Texts of evaluation sets, by set and file."""


def guards(corpus: CorpusConfig, folders: Sequence[Path], texts: Sequence[MeasuredText]) -> Guards:
    """The guards of a pool.

    Args:
        corpus: has the evaluation sets.
        folders: prepared corpora whose measured documents leave.
        texts: those of them whose near copies leave too.

    Raises:
        DataError: a file of an evaluation set or a shard cannot be read.
    """
    measured = Measured.of(folders) if folders else None
    known = {GENERAL: [text for each in texts for text in each.texts()]} if texts else {}
    if not corpus.decontaminate and not known:
        return Guards(Sieve(measured=measured.many if measured else None))
    index = evaluation_index(corpus, known)
    return Guards(Sieve(index.many, measured.many if measured else None), index.counts)
