"""What all stages of a configuration share: the model, digests, and the checks that need no cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import Config, ModelConfig
from adapt.corpus.cleaning.catalogue import check_entities
from adapt.corpus.entities import tagger_source
from adapt.corpus.form import Form
from adapt.corpus.manifest import Manifest
from adapt.model.direction import check_architecture
from adapt.model.limits import check_sequence_length
from adapt.model.locate import Pretrained, locate, model_files, tokenizer_files
from adapt.preflight import (
    check_compile,
    check_shared,
    check_training,
    check_writable,
)
from adapt.runner import Record, Stage
from adapt.runner.digest import Digests
from adapt.runner.packages import deciding
from adapt.runner.record import load_record
from adapt.train.job import MODEL_FOLDER
from adapt.train.schedule import micro_batch
from adapt.train.track import check_trackers

Inputs = Mapping[str, Record]
"""Records of the stages that a stage reads, by name."""
START = "(start)"
"""An input: the training whose model is taken further. No source has this name."""


@dataclass(frozen=True)
class Start:
    """A model that a stage of the same chain makes."""

    training: Stage
    pretrained: Pretrained
    """What that training began with: it has the same architecture and tokenizer."""


class Base:
    """One configuration, after checking all that can be checked without a cluster.

    Args:
        config: what the user wants.
        start: the model to begin with, in place of model.path.

    Raises:
        ConfigError, DataError, ModelError, StorageError: something named in the configuration cannot work.
    """

    def __init__(self, config: Config, start: Start | None = None) -> None:
        root = Path(config.storage.root).expanduser().absolute()
        self.config = config
        self.whole = config
        """Also where a copy works on a part of it, such as one domain: what is measured of all is said here."""
        self.root = root
        self._digests = Digests(root / ".digests.json")
        self._listings: dict[tuple[str, str], tuple[Manifest, Stage]] = {}
        check_shared(config)
        check_compile(config)
        check_entities(config.corpus.cleaning, config.objective.entity_field)
        check_training(config)
        micro_batch(config.training, config.resources.workers)
        check_trackers(config.tracking)
        self.start = start.training if start else None
        self.pretrained = start.pretrained if start else _located(config.model)
        model = self.pretrained.model
        check_architecture(model, config.objective.kind == "causal")
        check_sequence_length(model, config.training.sequence_length, "training.sequence_length")
        check_sequence_length(model, config.evaluation.sequence_length, "evaluation.sequence_length")
        check_writable(root)

    def _knows(self, inputs: Inputs) -> bool:
        """Whether the model to begin with has been trained on the text of dev and test, as far as records say."""
        start = inputs.get(START) or load_record(self.pretrained.model)
        return bool(start and start.metrics.get("transductive"))

    def remember(self) -> None:
        """Keeps the digests of files, so that they need not be read again."""
        self._digests.save()

    def _model_digest(self) -> str | None:
        """Of the model to begin with; None where a stage makes it, whose key says it all."""
        return None if self.start else self._digests.of_all(model_files(self.pretrained.model))

    def _tokenizer_identity(self) -> dict[str, Any]:
        """What decides which tokens a text becomes."""
        files = tokenizer_files(self.pretrained.tokenizer)
        return {"tokenizer": self._digests.of_all(files), **deciding("tokenizers")}

    def _started(self) -> dict[str, Stage]:
        """The input that makes the model to begin with, if there is one."""
        return {START: self.start} if self.start else {}

    def _start_of(self, inputs: Inputs) -> Pretrained:
        """The model to begin with, once it is made."""
        return made_by(inputs[START], self.pretrained) if START in inputs else self.pretrained

    def _form_identity(self) -> dict[str, Any]:
        """What the objective needs beyond tokens; nothing for token masking. A tagger is known by its source."""
        form = Form.of(self.config.objective)
        source = tagger_source(form.tagger) if form.tagger else None
        return {**form.identity(), **({"tagger_source": self._digests.of(source)} if source else {})}


def made_by(training: Record, pretrained: Pretrained) -> Pretrained:
    """The model that a training left; its tokenizer is that of the model it began with."""
    return replace(pretrained, model=training.path / MODEL_FOLDER)


def _located(model: ModelConfig) -> Pretrained:
    folder = locate(model.path, model.revision)
    tokenizer = locate(model.tokenizer, weights=False) if model.tokenizer else folder
    return Pretrained(folder, tokenizer, model.trust_remote_code)
