"""The stages that write text to train on: that of tasks without its labels, and what is taken of a pool."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapt.config import CorpusConfig, TaskConfig, what
from adapt.corpus.identity import reading_identity
from adapt.corpus.manifest import Manifest, build_manifest, check_listed
from adapt.corpus.roles import FILES, pooled_corpus, replayed_corpus
from adapt.errors import DataError
from adapt.runner import Outcome, Stage
from adapt.runner.files import write_atomically
from adapt.select import TEXTS_FILE
from adapt.stages.base import Inputs
from adapt.stages.corpora import NOTHING, without
from adapt.stages.tasks import Tasks


class Texts(Tasks):
    """Text of tasks and pools."""

    def task_texts(
        self,
        tasks: Sequence[TaskConfig],
        splits: Sequence[str],
        without: Sequence[str] = (),
        others: Sequence[TaskConfig] = (),
    ) -> Stage:
        """The text of some splits, without labels.

        Args:
            tasks: whose.
            splits: of train, dev and test.
            without: splits whose texts are left out, also where they stand in the others.
            others: more tasks, of which these splits' texts are left out too.
        """
        identity = {
            "splits": list(splits),
            "without": list(without),
            "tasks": [self._read_of(task, (*splits, *without)) for task in tasks],
            **({"others": [self._read_of(task, without) for task in others]} if others else {}),
        }

        unseen = [(task, split) for task in (*tasks, *others) for split in without]
        wanted = [(task, split) for task in tasks for split in splits]
        listed = [self._split(task, split) for task, split in (*wanted, *unseen)]

        def run(folder: Path, _: Inputs) -> Outcome:
            outcome = _write_texts(wanted, unseen, folder)
            for each in listed:
                check_listed(each)
            return outcome

        return Stage("texts", "-".join([*(task.name for task in tasks), *splits]), identity, run, needs={})

    def _read_of(self, task: TaskConfig, splits: Sequence[str]) -> dict[str, Any]:
        """What decides which texts come out of reading some splits."""
        settings = {name: value for name, value in what(task).items() if name in ("kind", "text_field", "pair_field")}
        return {**settings, **{split: self._split(task, split).digest for split in splits}}

    def prepared_texts(self, texts: Stage, heldout: bool = False, measured: Mapping[str, Stage] = NOTHING) -> Stage:
        """The text that a stage wrote, as token shards.

        Args:
            texts: the stage.
            heldout: all of it is to be measured on, and not to be trained on.
            measured: prepared text that it leaves out, because it is measured.
        """
        corpus = replace(self.config.corpus, **FILES, **_AS_IT_IS, heldout_fraction=1.0 if heldout else 0.0)
        identity = {
            "corpus": {**reading_identity(corpus, self._digests), "heldout_fraction": corpus.heldout_fraction},
            **self._tokenizer_identity(),
            **self._form_identity(),
        }

        def run(folder: Path, inputs: Inputs) -> Outcome:
            file = str(inputs["texts"].path / TEXTS_FILE)
            return self._prepare(build_manifest(replace(corpus, paths=file), self._digests), corpus, folder, inputs, 0)

        return Stage("prepare", texts.name, identity, run, {"texts": texts, **measured})

    def pool(self, unseen: Stage | None, measured: Mapping[str, Stage] = NOTHING) -> Stage:
        """All of the pool, as token shards.

        Args:
            unseen: texts that it must not hold.
            measured: prepared text that it leaves out, because it is measured.
        """
        return self._prepared_without(pooled_corpus(self.config), f"{self.config.name}-pool", unseen, measured)

    def general_text(self, unseen: Stage | None, measured: Mapping[str, Stage] = NOTHING) -> Stage | None:
        """The general text that is mixed in, if there is any, as token shards.

        Args:
            unseen: texts that it must not hold.
            measured: prepared text that it leaves out, because it is measured.
        """
        if not self.config.mixture.replay_paths:
            return None
        return self._prepared_without(replayed_corpus(self.config), f"{self.config.name}-replay", unseen, measured)

    def _prepared_without(
        self, corpus: CorpusConfig, name: str, unseen: Stage | None, measured: Mapping[str, Stage]
    ) -> Stage:
        manifest, listed = self._listed(corpus, name)
        beside = self._beside(replay=False)
        dedup = self.deduplicated([("", corpus)], beside, unseen) if beside else None
        identity = {
            "corpus": {**reading_identity(corpus, self._digests), "heldout_fraction": corpus.heldout_fraction},
            **self._tokenizer_identity(),
            **self._form_identity(),
        }

        def run(folder: Path, inputs: Inputs) -> Outcome:
            return self._prepare(manifest, without(corpus, inputs), folder, inputs, 0)

        needed = {"manifest": listed, "dedup": dedup, "unseen": unseen}
        inputs = {**{name: stage for name, stage in needed.items() if stage}, **measured}
        return Stage("prepare", name, identity, run, inputs)

    def random_texts(
        self, tasks: Sequence[Stage], unseen: Stage | None, measured: Mapping[str, Stage] = NOTHING
    ) -> Stage:
        """Documents of the pool at random, so many for each of some tasks' train examples (RAND-TAPT).

        Args:
            tasks: say how many examples there are.
            unseen: texts that must not be chosen.
            measured: prepared text that must not be chosen, because it is measured.
        """
        corpus = pooled_corpus(self.config)
        manifest, listed = self._listed(corpus, f"{self.config.name}-pool")
        identity = {
            "way": "random",
            "per_example": self.config.tapt.random_per_example,
            "corpus": {**reading_identity(corpus, self._digests), "heldout_fraction": corpus.heldout_fraction},
            "seed": self.config.seed,
        }

        def run(folder: Path, inputs: Inputs) -> Outcome:
            examples = sum(inputs[name].metrics["examples"]["train"] for name in named)
            paths = [inputs[name].path for name in measured]
            return self._select(manifest, without(corpus, inputs), examples, paths, folder)

        named = {f"task-{place}" if place else "task": task for place, task in enumerate(tasks)}
        inputs = {"manifest": listed, **named, **({"unseen": unseen} if unseen else {}), **measured}
        return Stage("select", f"{self.config.name}-random", identity, run, inputs, needs={"CPU": 1})

    def _select(
        self, manifest: Manifest, corpus: CorpusConfig, examples: int, measured: Sequence[Path], folder: Path
    ) -> Outcome:
        from adapt.corpus.clean import Sieve, Tally, clean
        from adapt.corpus.decontaminate import evaluation_index
        from adapt.corpus.heldout import Measured, is_heldout
        from adapt.corpus.sources import items_of, read_slice, slices_of
        from adapt.select.random import choose

        index = evaluation_index(corpus) if corpus.decontaminate else None
        tally, sieve = Tally(), Sieve(index, Measured.of(measured) if measured else None)
        slices = [each for item in items_of(manifest, corpus) for each in slices_of(item)]
        texts = (text for part in slices for text in clean(read_slice(part, corpus), corpus, tally, part.place, sieve))
        texts = (text for text in texts if not is_heldout(text, corpus.heldout_fraction))
        wanted = (self.config.tapt.random_per_example or 0) * examples
        chosen = choose(texts, wanted, self.config.seed)
        if not chosen:
            raise DataError("no document of the pool can be chosen", "check tapt.pool_paths and tapt.pool_text_field")
        lines = [{"id": place, "score": score, "text": text} for place, text, score in chosen]
        write_atomically(folder / TEXTS_FILE, _lines(lines))
        metrics = {"documents": len(lines), "wanted": wanted, "pool": tally.kept, "dropped": dict(tally.dropped)}
        return Outcome({**metrics, "evaluation_texts": index.counts if index else {}})


_AS_IT_IS: dict[str, Any] = {
    "text_field": "text",
    "text_unit": "line",
    "cleaning": [],
    "decontaminate": [],
    "deduplicate": "none",
}
"""Text that was chosen already is read as it is."""


def _write_texts(
    wanted: Sequence[tuple[TaskConfig, str]], unseen: Sequence[tuple[TaskConfig, str]], folder: Path
) -> Outcome:
    from adapt.corpus.shingles import normalised
    from adapt.task.texts import texts_of

    hidden = {normalised(text) for task, split in unseen for text in texts_of(task, split)}
    found = [text for task, split in wanted for text in texts_of(task, split)]
    kept = [text for text in found if normalised(text) not in hidden]
    if not kept:
        raise DataError(
            f"all texts of {wanted[0][0].name} stand in dev or test too, so none is left to train on",
            "check the files of the splits, or set tapt.transductive",
        )
    write_atomically(folder / TEXTS_FILE, _lines({"id": n, "text": text} for n, text in enumerate(kept)))
    return Outcome({"documents": len(kept), "in_other_splits": len(found) - len(kept)})


def _lines(records: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
