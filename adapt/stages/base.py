"""What all stages of a configuration share: the model, digests, and the checks that need no cluster."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.chain import Record, Stage
from adapt.chain.digest import Digests
from adapt.config import Config
from adapt.corpus.cleaning.catalogue import check_entities
from adapt.corpus.entities import tagger_source
from adapt.corpus.form import Form
from adapt.corpus.manifest import Manifest
from adapt.model.direction import check_architecture
from adapt.model.limits import check_sequence_length
from adapt.model.locate import Pretrained, locate, model_files
from adapt.preflight import (
    check_compile,
    check_shared,
    check_training,
    check_writable,
)
from adapt.train.schedule import micro_batch
from adapt.train.track import check_trackers

if TYPE_CHECKING:
    pass


Inputs = Mapping[str, Record]
"""Records of the stages that a stage reads, by name."""


class Base:
    """One configuration, after checking all that can be checked without a cluster.

    Args:
        config: what the user wants.

    Raises:
        ConfigError, DataError, ModelError, StorageError: something named in the configuration cannot work.
    """

    def __init__(self, config: Config) -> None:
        root = Path(config.storage.root).expanduser().absolute()
        self.config = config
        self.root = root
        self._digests = Digests(root / ".digests.json")
        self._listings: dict[tuple[str, str], tuple[Manifest, Stage]] = {}
        check_shared(config)
        check_compile(config)
        check_entities(config.corpus.cleaning, config.objective.entity_field)
        check_training(config)
        micro_batch(config.training, config.resources.workers)
        check_trackers(config.tracking)
        model = locate(config.model.path, config.model.revision)
        tokenizer = locate(config.model.tokenizer, weights=False) if config.model.tokenizer else model
        self.pretrained = Pretrained(model, tokenizer, config.model.trust_remote_code)
        check_architecture(model, config.objective.kind == "causal")
        check_sequence_length(model, config.training.sequence_length, "training.sequence_length")
        check_sequence_length(model, config.evaluation.sequence_length, "evaluation.sequence_length")
        check_writable(root)

    def _model_digest(self) -> str:
        return self._digests.of_all(model_files(self.pretrained.model))

    def _form_identity(self) -> dict[str, Any]:
        """What the objective needs beyond tokens; nothing for token masking. A tagger is known by its source."""
        form = Form.of(self.config.objective)
        source = tagger_source(form.tagger) if form.tagger else None
        return {**form.identity(), **({"tagger_source": self._digests.of(source)} if source else {})}
