"""Collects the inputs from which a job's stages are built: configuration, models, and listed files.

Besides its initial model, a job may read other models, such as members of an ensemble and teachers.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config, ModelConfig
from adapt.config.job_config import DAPT, Kind
from adapt.corpus import corpora, entities
from adapt.corpus.cleaning.cleaning_blocks import check_entities
from adapt.corpus.files.manifest import Manifest
from adapt.handover.table import need_vectors
from adapt.method.base import Method
from adapt.method.table import method_of
from adapt.model.architecture import check_architecture, check_sequence_length, check_turnable, try_unknown
from adapt.model.locate import CONFIG, Pretrained, locate, model_files, read_json, tokenizer_files
from adapt.model.sentence_vectors import SentenceVectors, exported_vectors
from adapt.model.size import ModelSize, model_size
from adapt.model.start import Start
from adapt.objective import table as objectives
from adapt.runner import Done, Stage, Store, mirror, notifications
from adapt.runner.digest import Digests
from adapt.runner.files import share_with_group
from adapt.runner.stage import deciding
from adapt.stage.add_head import AddHead, RedrawTop, TurnDecoder
from adapt.stage.preflight import check_compile, check_priced, check_shared, check_training, check_writable
from adapt.support.errors import ModelError
from adapt.support.paths import user_path
from adapt.train import metric_trackers, phases, schedule

if TYPE_CHECKING:
    from adapt.stage.select_documents import Select


CHECKS: tuple[Callable[[Config], object], ...] = (
    objectives.check_objective,
    objectives.check_objective_fits,
    check_shared,
    check_compile,
    lambda config: entities.TAGGERS.load(config.objective.tagger) if config.objective.tagger else None,
    lambda config: check_entities(config.corpus.cleaning, config.objective.entity_field),
    check_training,
    lambda config: schedule.micro_batch(config.training, config.resources.workers),
    lambda config: metric_trackers.check_trackers(config.tracking),
    lambda config: notifications.check_webhook(config.notify),
    lambda config: check_priced(config.resources),
    lambda config: check_writable(root_of(config)),
)
"""Functions that check a configuration without a cluster. They raise ConfigError or StorageError."""


@dataclass(frozen=True)
class Context:
    """A checked configuration, with the models, files and selections that are needed to build stages."""

    config: Config
    start: Start
    """Initial model."""
    digests: Digests
    manifests: dict[str, Manifest] = field(default_factory=dict)
    """Files of each corpus with digests. The key is the corpus's configuration, so that each corpus is listed once."""
    made: Mapping[str, Start] = field(default_factory=dict)
    """Models made by stages of the same chain, keyed by the path that a field such as `merge.models` names."""
    selected: "Select | None" = None
    """Selection that a stage of the same chain makes. A job that trains reads the selected documents. A job that
    selects documents itself selects the same number of tokens as this selection."""

    @classmethod
    def of(
        cls,
        config: Config,
        start: Start | None = None,
        made: Mapping[str, Start] | None = None,
        selected: "Select | None" = None,
        kind: Kind = DAPT,
    ) -> "Context":
        """Creates a context after all checks that need no cluster. `start` is by default the model at model.path.

        Raises:
          ConfigError, DataError, ModelError, StorageError: a setting in the configuration cannot be used.
        """
        phases.check_phases(config)
        phases.check_ramps(config)
        for check in CHECKS:
            check(config)
        share_with_group(root_of(config))
        digests = Digests.below(root_of(config))
        start = turned_start(config, start or first_start(config, digests), digests)
        start = beside_generator(config, start, digests)
        context = cls(config, start, digests, made=made or {}, selected=selected)
        model = context.start.pretrained.model
        if not kind.uses_objective:
            if context.start.turned:
                check_turnable(model)
            return context
        objectives.check_decodes(config, model)
        check_sides(context.start, config)
        check_sequence_length(model, config.training.sequence_length, "training.sequence_length")
        check_sequence_length(model, config.evaluation.sequence_length, "evaluation.sequence_length")
        for phase in phases.phases_of(config):
            with phase.errors():
                for check in CHECKS:
                    check(phase.config)
                check_sides(context.start, phase.config)
                check_sequence_length(model, phase.config.training.sequence_length, "sequence_length")
        return context

    @property
    def store(self) -> Store:
        """Store of all stages."""
        return Store(root_of(self.config))

    @property
    def tokens(self) -> "Tokens":
        """The tokenizer of the initial model, and further input that the objective needs, such as entities."""
        form = corpora.Form.of(*phases.objectives_of(self.config), sentences=objectives.splits_sentences(self.config))
        source = Path(inspect.getfile(entities.TAGGERS.load(form.tagger))) if form.tagger else None
        files = tokenizer_files(self.start.pretrained.tokenizer)
        digest = None if self.start.vocabulary else self.digests.of_all(files)
        identity = {"tokenizer": digest, **deciding("tokenizers")}
        known = {**form.identity(), **({"tagger_source": self.digests.of(source)} if source else {})}
        return Tokens(self.start.pretrained, form, identity, known, self.start.vocabulary)

    @property
    def vectors(self) -> SentenceVectors | None:
        """Sentence-transformers settings of exported models. None if the models are not meant for sentence vectors."""
        needed_by = need_vectors(self.config)
        return exported_vectors(
            self.config, self.start.pretrained.model, objectives.trained_pooling(self.config), needed_by
        )

    def redrawn(self) -> "Context":
        """Returns a context that starts from the same model with new top layers, if model.reinitialize_top is set."""
        if not self.config.model.reinitialize_top:
            return self
        return replace(self, start=self.start.after(RedrawTop.of(self.config, self.start)))

    def starting_from(self, training: Stage[Any]) -> "Context":
        """Returns a context that starts from the model of a training stage."""
        return replace(self, start=self.start.after(training))

    def configured(self, config: Config) -> "Context":
        """Returns a context with the same model and files, but with another configuration, such as one for a domain."""
        return replace(self, config=config)


@dataclass(frozen=True)
class Tokens:
    """A tokenizer, and a description of the input besides tokens that the objective needs, such as entities."""

    pretrained: Pretrained
    """Model whose tokenizer is used."""
    form: corpora.Form
    """Input that the objective needs in addition to tokens, such as entities."""
    tokenizer: Mapping[str, Any]
    """Entries of a stage's key that identify the tokenizer."""
    marks: Mapping[str, Any]
    """Entries of a stage's key that identify `form`. Empty for token masking. A tagger, which marks entities, is
    identified by its source code."""
    vocabulary: Stage[Any] | None = None
    """Stage that makes the tokenizer. None if the tokenizer of `pretrained` is used."""

    def made(self, done: Done) -> "Tokens":
        """Returns a copy that has the tokenizer's folder, after the stage that makes the tokenizer has finished."""
        if self.vocabulary is None:
            return self
        folder = done[self.vocabulary].path
        return replace(self, pretrained=replace(self.pretrained, model=folder, tokenizer=folder), vocabulary=None)

    def what(self) -> dict[str, Any]:
        """Returns the entries of a stage's key that identify the tokenizer and `form`."""
        return {**self.tokenizer, **self.marks}


def check_sides(start: Start, config: Config) -> None:
    """Reads config.json, and checks that the model is an encoder or a decoder, whichever the objective needs."""
    causal, shifted = config.objective.kind == "causal", objectives.predicts_shifted(config.objective)
    check_architecture(start.pretrained.model, causal, shifted, start.turned is not None)


def root_of(config: Config) -> Path:
    """Returns the folder that contains all stages of a configuration: the local copy if the root is a bucket.

    Raises:
        ConfigError: the URL of the bucket cannot be used.
    """
    storage = config.storage
    if "://" not in storage.root:
        return user_path(storage.root).absolute()
    return mirror.mirror_folder(storage.root, storage.cache, storage.cache_gb)


def first_start(config: Config, digests: Digests) -> Start:
    """Returns the initial model of a job. The model gets a new head if `model.head` is `new`."""
    start = located(config.model, digests)
    return start.with_new_head(AddHead.of(config, start)) if config.model.head == "new" else start


def turned_start(config: Config, start: Start, digests: Digests) -> Start:
    """Returns the initial model, converted from a decoder to an encoder if `model.attention` is `bidirectional`.

    A decoder whose tokens already attend to earlier and later tokens is returned unchanged.
    """
    is_turned = start.turned is not None or read_json(start.pretrained.model / CONFIG).get("is_causal") is False
    if config.model.attention == "own" or is_turned:
        return start
    has_own = config.model.tokenizer and start.vocabulary is None
    tokenizer = digests.of_all(tokenizer_files(start.pretrained.tokenizer)) if has_own else None
    return start.with_turned_decoder(TurnDecoder(start.pretrained.model.name, start, tokenizer))


def beside_generator(config: Config, start: Start, digests: Digests) -> Start:
    """Returns the initial model, with its existing generator if the objective also trains a generator (ELECTRA)."""
    folder = objectives.generator_of(config, start.pretrained.model, start.training is None)
    digest = digests.of_all(model_files(folder)) if folder else None
    return replace(start, pretrained=replace(start.pretrained, generator=folder), generator=digest)


def located(model: ModelConfig, digests: Digests) -> Start:
    """Finds the model that a configuration names.

    Raises:
        ModelError: the model or its tokenizer does not exist.
    """
    folder = locate(model.path, model.revision)
    tokenizer = locate(model.tokenizer, weights=False) if model.tokenizer else folder
    return Start(Pretrained(folder, tokenizer, model.trust_remote_code), digests.of_all(model_files(folder)))


LARGER = 1.01
"""A student counts as larger than its teacher if it has more than this many times the teacher's parameters. Checkpoints
of the same shape may differ by some small tensors, such as a pooler."""


def models_named(config: Config) -> Mapping[str, str]:
    """Returns the field that names each model of a configuration, keyed by the model's path. Excludes model.path.

    In a chain file, a path may be the name of a stage.
    """
    method = method_of(config)
    return {
        **{model.path: "comparison.models" for model in config.comparison.models},
        **dict.fromkeys(config.merge.models, "merge.models"),
        **dict.fromkeys(config.ensemble.models, "ensemble.models"),
        **dict.fromkeys(method.other_models, teachers_field(method)),
        **({config.generate.generator: "generate.generator"} if config.generate.generator else {}),
    }


def teachers_field(method: Method) -> str:
    """Returns the name of the field that lists the other models of a method, for messages."""
    return f"{method.kind}.teachers"


def same_tokens(one: Start, other: Start, digests: Digests) -> bool:
    """Returns whether two models have equal tokenizers, even if the tokenizers' files differ.

    Raises:
        ModelError: a tokenizer cannot be loaded, or does not belong to its model.
    """
    # compares the stages that make the tokenizers, because the tokenizers' files may not exist yet
    if one.vocabulary or other.vocabulary:
        return one.vocabulary == other.vocabulary
    ours, theirs = (digests.of_all(tokenizer_files(each.pretrained.tokenizer)) for each in (one, other))
    if ours == theirs:
        return True
    from adapt.model.tokenizer import are_alike  # imported here, because it loads transformers

    return are_alike(one.pretrained, other.pretrained)


def other_model(context: Context, path: str, field: str) -> Start:
    """Returns another model that has the same tokenizer as the context's model, after all checks that need no weights.

    Args:
        context: context of the job.
        path: id or folder of the model, or the name of a stage of the same chain.
        field: field that names the model, for messages.

    Raises:
        ModelError: the model does not exist, has another tokenizer, does not suit the objective, or accepts too few
            tokens.
    """
    config = context.config
    try:
        start = context.made.get(path) or located(replace(config.model, path=path), context.digests)
        check_sides(start, config)
        check_sequence_length(start.pretrained.model, config.evaluation.sequence_length, "evaluation.sequence_length")
    except ModelError as error:
        raise ModelError(f"{field}: {path}: {error.what}", error.fix) from error
    if not same_tokens(context.start, start, context.digests):
        raise ModelError(
            f"{field}: {path} has another tokenizer than model.path ({config.model.path}), so predictions of the two"
            " cannot be compared",
            "name models that share its tokenizer",
        )
    return start


def with_teachers(context: Context) -> tuple[Config, tuple[Start, ...]]:
    """Returns the configuration with each teacher's name replaced with the teacher's folder, and the teachers.

    The memory estimates read these folders. If another stage will make a teacher, the folder of that stage's initial
    model is used, because both models have the same shape.

    Raises:
        ModelError: a teacher does not exist, has another tokenizer, is smaller than the student, or has an unsupported
            head. Or the method compares hidden states, and the teacher's have another width.
    """
    config, method = context.config, method_of(context.config)
    if not method.other_models:
        return config, ()
    field = teachers_field(method)
    starts = tuple(other_model(context, path, field) for path in method.other_models)
    student = model_size(context.start.pretrained.model)
    for path, start in zip(method.other_models, starts, strict=True):
        folder = start.pretrained.model
        check_sequence_length(folder, config.training.sequence_length, "training.sequence_length")
        teacher = model_size(folder)
        if student and teacher:
            _check_sizes(f"{field}: {path}", student, teacher, method.needs_equal_width)
        if method.scores_in_blocks:
            causal = objectives.needs_decoder(config.objective)
            try_unknown(folder, causal, config.model.trust_remote_code, in_blocks=method.scores_in_blocks)
    options = method.at_folders([start.pretrained.model for start in starts])
    return replace(config, method_options=options), starts


def _check_sizes(teacher: str, student: ModelSize, size: ModelSize, needs_equal_width: bool) -> None:
    if student.parameters > LARGER * size.parameters:
        raise ModelError(
            f"{teacher} has {size.parameters / 1e6:,.1f} M parameters, and its student, model.path, has"
            f" {student.parameters / 1e6:,.1f} M: imitating a smaller teacher would limit a larger student",
            "name teachers of at least this size, or a smaller model.path",
        )
    if needs_equal_width and student.hidden != size.hidden:
        raise ModelError(
            f"{teacher} has hidden states of width {size.hidden}, and model.path of width {student.hidden}, so they"
            " cannot be compared",
            "set distill.of to logits, or name teachers of the same width",
        )
