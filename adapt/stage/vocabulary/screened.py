"""The text of domains as the stages of this folder read it: screened as the text of a training is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adapt.runner import Done
from adapt.stage.text.dedup import Dedup
from adapt.stage.text.listing import Files
from adapt.stage.text.prepare import duplicates_of


@dataclass(frozen=True)
class Screening:
    """What the text of the domains leaves out besides held-out text and the texts of `corpus.decontaminate`."""

    measured: Files | None = None
    """General text that is measured: no document of it is chosen from or taught on."""
    dedup: Dedup | None = None
    """Says which documents are copies, where `corpus.deduplicate` asks for it."""

    def what(self, domains: Mapping[str, Files]) -> dict[str, Any]:
        """Returns what the keys of stages hold of the screening; nothing where nothing is screened.

        Before evaluation sets were screened here, keys held their digests already. "screened" tells such results apart.
        """
        return {
            **({"screened": True} if any(files.corpus.decontaminate for files in domains.values()) else {}),
            **({"measured": self.measured.what()} if self.measured else {}),
        }

    def texts(self, domains: Mapping[str, Files], megabytes: float, seed: int, done: Done) -> dict[str, Iterator[str]]:
        """Returns the documents of each domain, which are read as they are iterated over.

        Args:
            domains: their files, in the order in which they were deduplicated.
            megabytes: about this much text is read of each domain.
            seed: of the order in which parts of a domain are read.
            done: the finished stages.

        Raises:
            DataError: a file is broken, or too many records are.
        """
        from adapt.vocabulary.texts import corpus_texts, measured_in

        measured = measured_in(self.measured.manifest, self.measured.corpus) if self.measured else None
        return {
            name: corpus_texts(
                files.manifest, files.corpus, megabytes, seed, measured, duplicates_of(self.dedup, place, done)
            )
            for place, (name, files) in enumerate(domains.items())
        }
