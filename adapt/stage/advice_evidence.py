"""Stage `evidence` measures samples of texts and tasks, for advice on what to run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.advise.evidence import Evidence
from adapt.config import Config
from adapt.model.start import Start
from adapt.objective.table import measured_what
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.stage.context import Tokens
from adapt.stage.finetuning import PrepareTask
from adapt.stage.preflight import check_weights
from adapt.stage.text_sources import Files


@dataclass(frozen=True, eq=False)
class Look(Stage[Evidence]):
    """Measures raw texts and tasks with a model, to advise on what to run."""

    kind = "evidence"
    version = 3  # since version 3, samples leave out the texts of evaluation sets
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model with which the texts are measured."""
    tokens: Tokens
    texts: Mapping[str, tuple[Files, ...]]
    """Sources of each text that is configured. The keys are `corpus`, `general`, `pool` and `candidates`."""
    tasks: Mapping[str, PrepareTask]

    def what(self) -> Mapping[str, Any]:
        """Returns the model, the tokenizer, and how texts are read and sampled."""
        config = self.config
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "texts": {name: [source.reading for source in sources] for name, sources in self.texts.items()},
            "objective": measured_what(config),
            "sequence_length": config.evaluation.sequence_length,
            "max_documents": config.advice.max_documents,
            "min_count": config.vocabulary.min_count,
        }

    def run(self, folder: Path, done: Done) -> Outcome[Evidence]:
        """Samples the texts and measures them, in this process.

        Raises:
            DataError: a corpus has no text.
        """
        from adapt.advise import collect_evidence, corpus_sample

        start, most = self.start.made(done), self.config.advice.max_documents
        check_weights(start.model)
        samples = {
            name: corpus_sample.joined_samples(
                [
                    corpus_sample.sample_corpus(files.manifest, files.corpus, most // len(sources) or 1)
                    for files in sources
                ]
            )
            for name, sources in self.texts.items()
        }
        tasks = {name: done[task].path for name, task in self.tasks.items()}
        return Outcome(collect_evidence.look(self.config, start, samples, tasks))
