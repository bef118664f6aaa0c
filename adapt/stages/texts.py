"""The stages that write text to train on: that of tasks without its labels, and what is taken of a pool."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapt.chain import Outcome, Stage
from adapt.chain.files import write_atomically
from adapt.config import CorpusConfig, EvaluationSet, TaskConfig, what
from adapt.corpus.identity import reading_identity
from adapt.corpus.manifest import Manifest, build_manifest
from adapt.model.locate import tokenizer_files
from adapt.select import TEXTS_FILE
from adapt.stages.base import Inputs
from adapt.stages.corpora import FILES
from adapt.stages.tasks import Tasks


class Texts(Tasks):
    """Text of tasks and pools."""

    def task_texts(self, tasks: Sequence[TaskConfig], splits: Sequence[str], without: Sequence[str] = ()) -> Stage:
        """The text of some splits, without labels.

        Args:
            tasks: whose.
            splits: of train, dev and test.
            without: splits whose texts are left out, also where they stand in the others.
        """
        identity = {
            "splits": list(splits),
            "without": list(without),
            "tasks": [
                {
                    **{
                        name: value
                        for name, value in what(task).items()
                        if name in ("kind", "text_field", "pair_field")
                    },
                    **{split: self._split(task, split).digest for split in (*splits, *without)},
                }
                for task in tasks
            ],
        }
        name = "-".join([*(task.name for task in tasks), *splits])
        return Stage("texts", name, identity, lambda folder, _: _write_texts(tasks, splits, without, folder), needs={})

    def prepared_texts(self, texts: Stage, heldout: bool = False) -> Stage:
        """The text that a stage wrote, as token shards: all of it to train on, or all of it to measure on."""
        corpus = replace(self.config.corpus, **FILES, **_AS_IT_IS, heldout_fraction=1.0 if heldout else 0.0)
        identity = {
            "corpus": {**reading_identity(corpus, self._digests), "heldout_fraction": corpus.heldout_fraction},
            "tokenizer": self._digests.of_all(tokenizer_files(self.pretrained.tokenizer)),
            **self._form_identity(),
        }

        def run(folder: Path, inputs: Inputs) -> Outcome:
            file = str(inputs["texts"].path / TEXTS_FILE)
            return self._prepare(build_manifest(replace(corpus, paths=file), self._digests), corpus, folder, inputs, 0)

        return Stage("prepare", texts.name, identity, run, {"texts": texts})

    def pool(self, unseen: Stage | None) -> Stage:
        """All of the pool, as token shards.

        Args:
            unseen: texts that it must not hold.
        """
        corpus, (manifest, listed) = self._pool_corpus(), self._listed(self._pool_corpus(), f"{self.config.name}-pool")
        identity = {
            "corpus": {**reading_identity(corpus, self._digests), "heldout_fraction": 0.0},
            "tokenizer": self._digests.of_all(tokenizer_files(self.pretrained.tokenizer)),
            **self._form_identity(),
        }

        def run(folder: Path, inputs: Inputs) -> Outcome:
            return self._prepare(manifest, _without(corpus, inputs), folder, inputs, 0)

        inputs = {"manifest": listed, **({"unseen": unseen} if unseen else {})}
        return Stage("prepare", f"{self.config.name}-pool", identity, run, inputs)

    def random_texts(self, task: Stage, unseen: Stage | None) -> Stage:
        """Documents of the pool at random, so many for each of the task's train examples (RAND-TAPT).

        Args:
            task: says how many examples there are.
            unseen: texts that must not be chosen.
        """
        corpus, (manifest, listed) = self._pool_corpus(), self._listed(self._pool_corpus(), f"{self.config.name}-pool")
        identity = {
            "way": "random",
            "per_example": self.config.tapt.random_per_example,
            "corpus": reading_identity(corpus, self._digests),
            "seed": self.config.seed,
        }

        def run(folder: Path, inputs: Inputs) -> Outcome:
            examples = inputs["task"].metrics["examples"]["train"]
            return self._select(manifest, _without(corpus, inputs), examples, folder)

        inputs = {"manifest": listed, "task": task, **({"unseen": unseen} if unseen else {})}
        return Stage("select", f"{self.config.name}-random", identity, run, inputs, needs={"CPU": 1})

    def _pool_corpus(self) -> CorpusConfig:
        tapt, own = self.config.tapt, self.config.corpus
        settings: dict[str, Any] = {"decontaminate": [], "deduplicate": "none", "heldout_fraction": 0.0}
        return replace(own, **FILES, **settings, paths=tapt.pool_paths, text_field=tapt.pool_text_field)

    def _select(self, manifest: Manifest, corpus: CorpusConfig, examples: int, folder: Path) -> Outcome:
        from adapt.corpus.clean import Sieve, Tally, clean
        from adapt.corpus.decontaminate import evaluation_index
        from adapt.corpus.sources import items_of, read_slice, slices_of
        from adapt.select.random import choose

        tally, sieve = Tally(), Sieve(evaluation_index(corpus) if corpus.decontaminate else None)
        slices = [each for item in items_of(manifest, corpus) for each in slices_of(item)]
        texts = (text for part in slices for text in clean(read_slice(part, corpus), corpus, tally, part.place, sieve))
        wanted = (self.config.tapt.random_per_example or 0) * examples
        chosen = choose(texts, wanted, self.config.seed)
        lines = [{"id": place, "score": score, "text": text} for place, text, score in chosen]
        write_atomically(folder / TEXTS_FILE, _lines(lines))
        return Outcome({"documents": len(lines), "wanted": wanted, "pool": tally.kept, "dropped": dict(tally.dropped)})


_AS_IT_IS: dict[str, Any] = {
    "text_field": "text",
    "text_unit": "line",
    "cleaning": [],
    "decontaminate": [],
    "deduplicate": "none",
}
"""Text that was chosen already is read as it is."""


def _without(corpus: CorpusConfig, inputs: Inputs) -> CorpusConfig:
    """A pool that holds none of the texts that must not be seen."""
    if "unseen" not in inputs:
        return corpus
    file = str(inputs["unseen"].path / TEXTS_FILE)
    return replace(corpus, decontaminate=[EvaluationSet("dev-and-test", file)])


def _write_texts(tasks: Sequence[TaskConfig], splits: Sequence[str], without: Sequence[str], folder: Path) -> Outcome:
    from adapt.corpus.shingles import normalised
    from adapt.task.texts import texts_of

    hidden = {normalised(text) for task in tasks for split in without for text in texts_of(task, split)}
    found = [text for task in tasks for split in splits for text in texts_of(task, split)]
    kept = [text for text in found if normalised(text) not in hidden]
    write_atomically(folder / TEXTS_FILE, _lines({"id": n, "text": text} for n, text in enumerate(kept)))
    return Outcome({"documents": len(kept), "in_other_splits": len(found) - len(kept)})


def _lines(records: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
