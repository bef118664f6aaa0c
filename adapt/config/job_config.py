"""Defines the configuration of a job, and which sections and defaults each kind of job has."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any

from adapt.config.corpus import CorpusConfig, GenerateConfig, MixtureConfig, SynthesizeConfig
from adapt.config.fields import how_list
from adapt.config.job_sections import (
    AdviceConfig,
    ComparisonConfig,
    EnsembleConfig,
    EvaluationConfig,
    ExportConfig,
    MergeConfig,
    NotifyConfig,
    ResourcesConfig,
    RetrievalConfig,
    SimilarityConfig,
    StorageConfig,
    TrackingConfig,
    TuneConfig,
    VocabularyConfig,
)
from adapt.config.tasks import FinetuneConfig, HarnessConfig, MtebConfig, SelectConfig, TaptConfig, TaskConfig
from adapt.config.training import MethodConfig, ModelConfig, ObjectiveConfig, SequenceConfig, TrainingConfig, section_of


def flat(config: "Config") -> dict[str, Any]:
    """Returns the values of all fields, keyed by dotted name, for trackers and messages.

    Options of methods, objectives, selections and kinds of exports are included only if the configuration uses them.
    """
    by_kind = ("select_options", "export_options")
    sections = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in by_kind}
    for field_name, kind in (("method_options", config.method.kind), ("objective_options", config.objective.kind)):
        if (options := sections.pop(field_name)) is not None:
            sections[section_of(kind)] = options
    options = {**config.select_options, **config.export_options}
    chosen = {f"{section}.{name}": value for section, of in options.items() for name, value in of.items()}
    return chosen | {
        name: value
        for section, content in sections.items()
        for name, value in (
            {f"{section}.{f.name}": getattr(content, f.name) for f in fields(content)}
            if is_dataclass(content)
            else {section: content}
        ).items()
    }


@dataclass(frozen=True)
class Config:
    """The configuration of a job: a name, a seed, and sections."""

    name: str = "dapt"
    """Readable name of the output folders. Results are found by their configuration and not by this name, so
    renaming a job repeats no work. dontstop sequence stops if a sequence of this name was started earlier with a
    different order of domains or different text."""
    seed: int = 0
    """Seed of the data order, masks and dropout."""
    model: ModelConfig = field(default_factory=ModelConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    synthesize: SynthesizeConfig = field(default_factory=SynthesizeConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    harness: HarnessConfig = field(default_factory=HarnessConfig)
    mteb: MtebConfig = field(default_factory=MtebConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    tasks: list[TaskConfig] = how_list()
    """Further tasks: a list of sections like `task`. dontstop tapt trains on the text of all tasks, dontstop evaluate
    compares models on them, and dontstop sequence uses them as end tasks, each with its `domain`."""
    tapt: TaptConfig = field(default_factory=TaptConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    merge: MergeConfig = field(default_factory=MergeConfig)
    comparison: ComparisonConfig = field(default_factory=ComparisonConfig)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    similarity: SimilarityConfig = field(default_factory=SimilarityConfig)
    advice: AdviceConfig = field(default_factory=AdviceConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    notify: NotifyConfig = field(default_factory=NotifyConfig)
    method_options: Any = None
    """Options of the method that method.kind names, read from the section with the method's name; None means
    defaults."""
    objective_options: Any = None
    """Options of the objective that objective.kind names, read from the section with the objective's name; None means
    defaults."""
    select_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of the selections and of the embedder named in section `select`, keyed by section. Options that are not
    listed have their defaults. The dict is empty if no pool is configured."""
    export_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of the kinds in export.kinds, keyed by section. Empty if no kind has a section."""


@dataclass(frozen=True, eq=False)  # compared by identity, so that a kind can be a key of a cache
class Kind:
    """A kind of job, such as dapt or tapt: its name, the sections that it requires, and its defaults."""

    name: str
    description: str
    corpus: bool = True
    """Whether the job requires `corpus`."""
    sources: bool = False
    """Whether `corpus` must be a list of sources."""
    task: bool = False
    """Whether the job requires `task`."""
    selects: bool = False
    """Whether the job can train on documents selected from a pool (`select.pool_paths`) instead of a corpus."""
    not_rtd: str = "needs a model that predicts words"
    """Reason why the job cannot use objective.kind rtd: the end of the error message `... does not work with dontstop
    NAME, which ...`. Empty if the job can train with rtd or uses no objective."""
    uses_objective: bool = True
    """Whether the job trains by the objective or measures its loss, so that the model must fit the objective and accept
    sequences of `training.sequence_length` and `evaluation.sequence_length` tokens."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ from those of the fields, by dotted field name. If the
    user sets the training length in epochs or tokens, a default length in steps does not apply."""


DAPT = Kind(
    "dapt",
    "Domain-adaptive pre-training: adapts a model to a corpus (Don't Stop Pretraining, section 3).",
    selects=True,
    not_rtd="",
)
"""Kind of job used for a configuration that does not name one."""
TAPT_LENGTH: Mapping[str, Any] = {"training.epochs": 100.0, "training.learning_rate": 1e-4}
"""TAPT's defaults for length and learning rate. `dontstop advise` computes the costs of TAPT with these defaults."""


@cache  # returns the same object for the same kind, because kinds are compared by identity
def without_corpus(kind: Kind) -> Kind:
    """Returns the same kind of job without the requirement of a corpus, for jobs whose text comes from elsewhere."""
    return replace(kind, corpus=False)
