"""The evidence for advice as a stage, and the advice that follows from it at no cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapt.config import CorpusConfig, what
from adapt.corpus.identity import reading_identity
from adapt.corpus.manifest import Manifest
from adapt.corpus.roles import general_corpus, pooled_corpus
from adapt.corpus.sources import sources_of
from adapt.errors import ConfigError
from adapt.model.size import model_size
from adapt.preflight import check_weights
from adapt.runner import Outcome, Record, Stage, Store
from adapt.stages.base import Inputs
from adapt.stages.texts import Texts

Listed = list[tuple[Manifest, CorpusConfig]]


class Advising(Texts):
    """What to run first."""

    def evidence(self) -> Stage:
        """Samples of the corpus, of general text and of TAPT's pool, and the tasks, as far as they are configured.

        Raises:
            ConfigError: there is neither a corpus nor a task.
        """
        texts = dict(self._texts())
        tasks = {task.name: self.task(task) for task in (self.config.task, *self.config.tasks) if task.train}
        if not tasks and "corpus" not in texts:
            raise ConfigError("there is nothing to advise on", "name a corpus (corpus.paths) or a task (task.train)")
        config = self.config
        inputs: dict[str, Stage] = dict(tasks)
        files: dict[str, Listed] = {}
        for text, corpora in texts.items():
            listed = [self._listed(corpus, f"{config.name}-{text}") for corpus in corpora]
            files[text] = [(manifest, corpus) for (manifest, _), corpus in zip(listed, corpora, strict=True)]
            inputs |= {f"{text} {place}": stage for place, (_, stage) in enumerate(listed)}
        identity = {
            "model": self._model_digest(),
            **self._tokenizer_identity(),
            "texts": {text: [reading_identity(each, self._digests) for each in found] for text, found in texts.items()},
            "objective": what(config.objective),
            "sequence_length": config.evaluation.sequence_length,
            "max_documents": config.advice.max_documents,
        }
        self._digests.save()

        def run(_: Path, done: Inputs) -> Outcome:
            return self._look(files, {name: done[name].path for name in tasks})

        return Stage("evidence", config.name, identity, run, inputs, needs={"CPU": 1})

    def advice(self, evidence: Record, arguments: Sequence[str]) -> dict[str, Any]:
        """What follows from the record of `evidence`: an `adapt.advise.advice.Advice` as plain values.

        Args:
            evidence: the record.
            arguments: of the command line, which the commands to run take over.
        """
        from adapt.advise.advice import advise
        from adapt.advise.costs import costs
        from adapt.advise.evidence import Evidence
        from adapt.advise.findings import Case

        found = Evidence.of(evidence.metrics)
        ahead = costs(self.config, found, model_size(self.pretrained.model), Store(self.root))
        return asdict(advise(Case(self.config, found, ahead), arguments))

    def _texts(self) -> Iterator[tuple[str, list[CorpusConfig]]]:
        """The corpora that there are, each as its sources."""
        config = self.config
        if config.corpus.paths or config.corpus.sources or config.corpus.source != "files":
            yield "corpus", [corpus for _, corpus in sources_of(config.corpus)]
        if config.evaluation.general_paths:
            yield "general", [general_corpus(config)]
        if config.tapt.pool_paths:
            yield "pool", [pooled_corpus(config)]

    def _look(self, texts: Mapping[str, Listed], tasks: Mapping[str, Path]) -> Outcome:
        from adapt.advise.look import look
        from adapt.advise.sample import sample_corpus, together

        check_weights(self.pretrained.model)
        most = self.config.advice.max_documents
        samples = {
            name: together([sample_corpus(manifest, corpus, most // len(files) or 1) for manifest, corpus in files])
            for name, files in texts.items()
        }
        found: dict[str, Any] = asdict(look(self.config, self.pretrained, samples, tasks))
        return Outcome(found)
