"""Stage `select`: the documents of a pool that are worth training on for some tasks."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adapt.config import SelectConfig
from adapt.corpus.files.manifest import check_listed
from adapt.errors import DataError
from adapt.plugin import source_digest
from adapt.runner import Done, Outcome, Stage
from adapt.select.table import SELECTIONS, selection_of
from adapt.stage.listing import Files
from adapt.stage.prepare import Prepared
from adapt.stage.reading import without
from adapt.stage.task import PrepareTask
from adapt.stage.task_texts import TaskTexts, write_texts


@dataclass(frozen=True)
class Selected:
    """What was taken. `texts.jsonl` has a line a document with `id` (its place in the pool), `score` and `text`."""

    documents: int
    wanted: int
    pool: int
    """Documents to choose from."""
    dropped: dict[str, int]
    """Documents of the pool that were dropped, by reason."""
    evaluation_texts: dict[str, Any]
    """Evaluation texts that were looked for in the pool, by set and file."""


@dataclass(frozen=True, eq=False)
class Select(Stage[Selected]):
    """Documents of a pool, so many for each train example of some tasks."""

    kind = "select"
    version = 2  # without the held-out share

    name: str
    select: SelectConfig
    per_example: int
    seed: int
    pool: Files
    tasks: tuple[PrepareTask, ...]
    unseen: TaskTexts | None
    """Texts that must not be chosen."""
    measured: tuple[Stage[Prepared], ...]
    """Text that must not be chosen, because it is measured."""

    def what(self) -> Mapping[str, Any]:
        """The way, the number, and how the pool is read."""
        selection = selection_of(self.select.kind, self.select.options, self.seed)
        own = {} if self.select.kind in SELECTIONS else {"source": source_digest(type(selection))}
        return {
            "way": self.select.kind,
            "options": asdict(selection.options),
            **own,
            "per_example": self.per_example,
            "corpus": self.pool.what(),
            "seed": self.seed,
        }

    def needs(self) -> Mapping[str, float]:
        """It takes one CPU."""
        return {"CPU": 1}

    def run(self, folder: Path, done: Done) -> Outcome[Selected]:
        """Scores the pool and writes what was taken.

        Raises:
            DataError: nothing can be chosen, or files have changed since they were listed.
        """
        from adapt.corpus.screening.clean import Sieve, Tally
        from adapt.corpus.screening.decontaminate import evaluation_index
        from adapt.corpus.screening.heldout import Measured
        from adapt.select.highest import highest

        corpus, paths = without(self.pool.corpus, self.unseen, done), [done[text].path for text in self.measured]
        index = evaluation_index(corpus) if corpus.decontaminate else None
        tally, sieve = Tally(), Sieve(index.many if index else None, Measured.of(paths).many if paths else None)
        wanted = self.per_example * sum(done[task].result.examples["train"] for task in self.tasks)
        selection = selection_of(self.select.kind, self.select.options, self.seed)
        texts = _pool(self.pool, corpus, tally, sieve)
        chosen = highest(selection, texts, self._target(), wanted)
        if not chosen:
            raise DataError("no document of the pool can be chosen", "check tapt.pool_paths and tapt.pool_text_field")
        write_texts(folder, ({"id": place, "score": score, "text": text} for place, text, score in chosen))
        counts = {name: dict(files) for name, files in index.counts.items()} if index else {}
        return Outcome(Selected(len(chosen), wanted, tally.kept, dict(tally.dropped), counts))

    def _target(self) -> Iterator[str]:
        from adapt.task.texts import texts_of

        for task in self.tasks:
            yield from texts_of(task.task, "train")
            check_listed(next(each.listed for each in task.splits if each.split == "train"))


def _pool(files: Files, corpus: Any, tally: Any, sieve: Any) -> Iterator[str]:
    from adapt.corpus.files.sources import items_of, read_slice, slices_of
    from adapt.corpus.screening.clean import clean
    from adapt.corpus.screening.heldout import is_heldout

    for item in items_of(files.manifest, corpus):
        for part in slices_of(item):
            for text in clean(read_slice(part, corpus), corpus, tally, part.place, sieve):
                if not is_heldout(text, corpus.heldout_fraction):
                    yield text
