"""The typed configuration of a job: the fields that a user may set, with their meaning, unit and default.

Defaults are those of *Don't Stop Pretraining* (arXiv 2004.10964, appendix B and its code).
"""

from adapt.config.corpus import CorpusConfig, EvaluationSet, MixtureConfig, SourceConfig
from adapt.config.fields import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    OpenFraction,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    ProperFraction,
    how,
    how_list,
    what,
)
from adapt.config.job_config import Config, flat
from adapt.config.job_sections import (
    AdviceConfig,
    ComparisonConfig,
    EvaluationConfig,
    ExportConfig,
    MergeConfig,
    NamedModel,
    RetrievalConfig,
    SimilarityConfig,
    TuneConfig,
    VocabularyConfig,
)
from adapt.config.resources import (
    NotifyConfig,
    ResourcesConfig,
    StorageConfig,
    TrackingConfig,
    Workers,
    fewest_of,
    most_of,
)
from adapt.config.tasks import FinetuneConfig, SelectConfig, TaptConfig, TaskConfig
from adapt.config.training import (
    MethodConfig,
    ModelConfig,
    ObjectiveConfig,
    PhaseConfig,
    SequenceConfig,
    TrainingConfig,
    section_of,
)

__all__ = [
    "AdviceConfig",
    "ComparisonConfig",
    "Config",
    "CorpusConfig",
    "EvaluationConfig",
    "EvaluationSet",
    "ExportConfig",
    "FinetuneConfig",
    "Fraction",
    "MergeConfig",
    "MethodConfig",
    "MixtureConfig",
    "ModelConfig",
    "NamedModel",
    "NonNegativeFloat",
    "NonNegativeInt",
    "NotifyConfig",
    "ObjectiveConfig",
    "OpenFraction",
    "PhaseConfig",
    "PositiveFloat",
    "PositiveFraction",
    "PositiveInt",
    "ProperFraction",
    "ResourcesConfig",
    "RetrievalConfig",
    "SelectConfig",
    "SequenceConfig",
    "SimilarityConfig",
    "SourceConfig",
    "StorageConfig",
    "TaptConfig",
    "TaskConfig",
    "TrackingConfig",
    "TrainingConfig",
    "TuneConfig",
    "VocabularyConfig",
    "Workers",
    "fewest_of",
    "flat",
    "how",
    "how_list",
    "most_of",
    "section_of",
    "what",
]
