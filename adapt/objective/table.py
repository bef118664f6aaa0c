"""Lists the objectives, their options, and their entries in the keys of stages. This module loads no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapt.config import Config, NonNegativeFloat, ObjectiveConfig, OpenFraction, PositiveInt, how, section_of, what
from adapt.config.kinds import Kinds
from adapt.model.additions.table import refuse_additions
from adapt.model.locate import CONFIG, GENERATOR, locate, read_json
from adapt.model.size import ModelSize, model_size
from adapt.support.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from adapt.objective.objective import Objective

RTD = "rtd"
"""Name of replaced-token detection, the objective that trains a generator and a discriminator."""


@dataclass(frozen=True)
class RtdOptions:
    """Replaced-token detection (ELECTRA, arXiv 2003.10555): a generator fills masks, the model finds wrong tokens."""

    generator: str | None = how(None)
    """Id or folder of the generator, a masked language model with the vocabulary of model.path. null uses the folder
    `generator` in model.path, if an earlier training run with rtd wrote one, or else a copy of the model's first
    layers."""
    generator_layers: PositiveInt | None = None
    """Number of the model's first layers that the generator copies if no trained generator is used. It also copies the
    embeddings, and its head gets random weights. null is a third of the layers, rounded up. ELECTRA's generator has 1/4
    to 1/2 of the model's size. DeBERTa-v3's generator has half of the model's layers (arXiv 2111.09543)."""
    embeddings: Literal["shared", "disentangled", "separate"] = "disentangled"
    """Tables of token and position embeddings: `shared` by generator and model (ELECTRA); `disentangled`, where the
    model's table is the generator's table, without gradients, plus a trained difference (DeBERTa-v3, section 3.3); or
    `separate`."""
    weight: NonNegativeFloat = 50.0
    """Factor lambda of the model's loss: the loss is L_MLM of the generator + lambda L_RTD of the model (ELECTRA,
    section 2)."""


@dataclass(frozen=True)
class TsdaeOptions:
    """Options of the objective `tsdae`, which trains sentence vectors (Wang et al. 2021, arXiv 2104.06979).

    Words of a sentence are deleted, the model makes one vector of the rest, and the same model rebuilds the sentence
    from the vector, predicting each next token. Works with BERT, RoBERTa, XLM-RoBERTa, CamemBERT and ELECTRA.
    """

    delete_fraction: OpenFraction = 0.6
    """Probability with which each word is deleted. At least one word of each text stays."""
    pooling: Literal["cls", "mean"] = "cls"
    """Vector of a text: the last state of its first token (`cls`, as published), or the `mean` over all its tokens.
    Exported folders and the measurement of retrieval use the same pooling."""
    unit: Literal["sentence", "document"] = "sentence"
    """Text that becomes one vector. `sentence` splits documents at empty lines, and after `.`, `!` or `?` before a
    blank. It does not split before a lowercase letter, or after abbreviations such as `et al.`. `document` takes
    whole documents. A text that is divided between two rows becomes two texts."""


OBJECTIVES: "Kinds[type[Objective]]" = Kinds(
    "objective.kind",
    {
        "mlm": "adapt.objective.masking:MaskedLanguageModelling",
        "whole_word": "adapt.objective.masking:WholeWordMasking",
        "entity": "adapt.objective.masking:EntityMasking",
        "span": "adapt.objective.masking:SpanMasking",
        "difference": "adapt.objective.masking:DifferenceMasking",
        "mntp": "adapt.objective.masking:MaskedNextToken",
        "causal": "adapt.objective.objective:CausalLanguageModelling",
        "causal_detour": "adapt.objective.objective:CausalDetour",
        RTD: "adapt.objective.replaced_tokens:ReplacedTokenDetection",
        "tsdae": "adapt.objective.tsdae:Tsdae",
    },
    base="adapt.objective.masking:Masking",
    options={RTD: "adapt.objective.table:RtdOptions", "tsdae": "adapt.objective.table:TsdaeOptions"},
)
"""The objectives, keyed by their names in `objective.kind`. The options of masking are fields of section `objective`.
Further options are in the section with the objective's name."""


def objective_options(config: Config) -> Any:
    """Returns the options of the configured objective: an instance of their dataclass, or None if it has no options."""
    given = config.objective_options
    return OBJECTIVES.read(config.objective.kind, {}) if given is None else given


def trained_pooling(config: Config) -> str | None:
    """Returns the pooling of the sentence vectors that the objective trains. None if it trains no such vectors."""
    pooling: str | None = getattr(objective_options(config), "pooling", None)
    return pooling


_DECODES = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
"""Values of `model_type` of the encoders for which transformers has cross-attention. The objective `tsdae` adds it."""


def reads_own_vectors(config: Config) -> bool:
    """Whether the loss depends on text vectors that the same model computes. Most methods do not support this."""
    return config.objective.kind == "tsdae"


def check_decodes(config: Config, model: Path) -> None:
    """Checks that a model's layers can attend to a sentence vector, if the objective is `tsdae`, which needs this.

    Raises:
        ConfigError: the model is a decoder, or an encoder without cross-attention.
        ModelError: the model has additions to its architecture, or config.json cannot be read.
    """
    if not reads_own_vectors(config):
        return
    kind = str(read_json(model / CONFIG).get("model_type"))
    if kind not in _DECODES:
        raise ConfigError(
            f"objective.kind {config.objective.kind} needs an encoder whose layers can have cross-attention in"
            f" transformers ({', '.join(_DECODES)}), but {model} is of type {kind}",
            "choose a model of one of these types, or set objective.kind to mlm",
        )
    refuse_additions(model, f"trained with objective.kind {config.objective.kind}")


def check_objective(config: Config) -> None:
    """Checks that a user-defined objective is a subclass of `Masking`.

    Built-in objectives are not loaded, since they load torch.

    Raises:
        ConfigError: the objective cannot be imported, or is not a subclass of `Masking`.
    """
    if config.objective.kind not in OBJECTIVES:
        OBJECTIVES.load(config.objective.kind)


def predicted_fraction(objective: ObjectiveConfig) -> float:
    """Returns the share of predicted tokens. The language-model head runs only at the predicted positions."""
    return 1.0 if objective.kind in ("causal", "causal_detour", "tsdae") else objective.mask_fraction


def encoded_again(config: Config) -> float:
    """Returns the share of the tokens that `tsdae` passes through the layers a second time; 0 for other objectives."""
    return 1 - objective_options(config).delete_fraction if config.objective.kind == "tsdae" else 0.0


def splits_sentences(config: Config) -> bool:
    """Whether the objective trains on sentences, so that the corpus is prepared with one document per sentence."""
    return getattr(objective_options(config), "unit", None) == "sentence"


def sees_only_earlier(objective: ObjectiveConfig) -> bool:
    """Whether the objective makes the attention of an encoder causal during training."""
    return objective.kind == "causal_detour"


def predicts_shifted(objective: ObjectiveConfig) -> bool:
    """Whether a masked token is predicted at the position before it, as in decoders with bidirectional attention."""
    return objective.kind == "mntp"


def needs_decoder(objective: ObjectiveConfig) -> bool | None:
    """Returns whether a model must predict next tokens, or None if encoders and decoders are both accepted."""
    return None if predicts_shifted(objective) else objective.kind == "causal"


def weighs_words(objective: ObjectiveConfig) -> bool:
    """Whether the objective needs the weights of the domain's words, which a stage computes before the training."""
    return objective.kind == "difference"


def check_objective_fits(config: Config) -> None:
    """Checks that no setting conflicts with replaced-token detection, if this objective is configured.

    Raises:
        ConfigError: a setting that replaced-token detection does not use or support is not at its default.
    """
    if config.objective.kind != RTD:
        return
    training = config.training
    if config.model.head == "new":
        raise ConfigError("model.head is new, but objective.kind rtd creates its own heads", "remove model.head")
    if config.select.pool_paths:
        raise ConfigError(
            "select.pool_paths is set with objective.kind rtd, but selections are judged by the loss of a model that"
            " predicts words",
            "select the documents in a separate stage (job: select) or with dontstop select, and train on them",
        )
    unsupported = {"training.freeze": bool(training.freeze), "training.layer_decay": training.layer_decay != 1}
    if name := next((name for name, is_set in unsupported.items() if is_set), ""):
        raise ConfigError(
            f"{name} is set, but objective.kind rtd also trains a generator, which has fewer layers than the model and"
            " shares its embeddings, so it is undefined to which of the generator's layers the setting applies",
            "remove it; training.embedding_rate works with rtd",
        )


def with_generator(config: Config, size: ModelSize, generator: Path | None) -> ModelSize:
    """Returns the total size of the trained models: the model and, for replaced-token detection, the generator.

    Args:
        config: the job's configuration.
        size: size of the model.
        generator: folder of the generator (`Pretrained.generator`); None if it copies layers of the model.
    """
    if config.objective.kind != RTD:
        return size
    options = objective_options(config)
    second = model_size(generator) if generator else size.first_layers(options.generator_layers or -(-size.layers // 3))
    return size if second is None else size.with_generator(second, options.embeddings == "shared")


def generator_of(config: Config, model: Path, is_on_disk: bool) -> Path | None:
    """Returns the folder of the generator: the configured folder, or else subfolder `generator` of the model's folder.

    Args:
        config: the job's configuration.
        model: folder of the first model.
        is_on_disk: whether the job trains exactly this model. False if a stage changes the model first.

    Returns:
        The folder. None for objectives other than replaced-token detection, and if the generator copies the model's
        first layers.

    Raises:
        ModelError: the named generator does not exist.
    """
    if config.objective.kind != RTD:
        return None
    if named := objective_options(config).generator:
        try:
            return locate(named)
        except ModelError as error:
            fix = error.fix.replace("model.path", "rtd.generator")
            raise ModelError(f"rtd.generator: {error.what}".replace("model.path", "rtd.generator"), fix) from error
    own = model / GENERATOR
    return own if is_on_disk and own.is_dir() else None


def measured_objective(config: Config) -> ObjectiveConfig:
    """Returns the objective with which held-out losses are measured.

    For encoders, this objective does not depend on the masking in training: they predict single tokens, a share
    `evaluation.mask_fraction` of each document. Losses under different masking cannot be compared, since a model has a
    higher loss at 30% than at 15%. Decoders predict each next token. With replaced-token detection, the model finds the
    tokens that a fixed generator has replaced.
    """
    if config.objective.kind == "causal":
        return config.objective
    fraction = config.evaluation.mask_fraction
    kind = config.objective.kind if config.objective.kind in (RTD, "mntp") else "mlm"
    return ObjectiveConfig(kind, mask_fraction=fraction)


def check_measured_in_training(config: Config) -> None:
    """Checks that the objective's held-out loss can be measured while the model trains.

    Raises:
        ConfigError: the objective is replaced-token detection. Its loss is measured with the generator from before the
            training, and the training changes the generator.
    """
    if config.objective.kind == RTD:
        raise ConfigError(
            "evaluation.interval_steps is set, but the loss of objective.kind rtd is measured with the generator from"
            " before training, which is not available while the model trains",
            "leave evaluation.interval_steps out; the loss is measured before and after training",
        )


def measured_name(config: Config) -> str:
    """Returns the name of the task whose loss is measured on held-out text; empty for the prediction of tokens."""
    return "replaced-token detection" if config.objective.kind == RTD else ""


def measured_what(config: Config) -> dict[str, Any]:
    """Returns the entries that the objective for held-out losses (`measured_objective`) adds to a stage's key."""
    layers = {"generator_layers": objective_options(config).generator_layers} if config.objective.kind == RTD else {}
    return {**what(measured_objective(config)), **layers}


def objective_what(config: Config) -> dict[str, Any]:
    """Returns the entries that the objective adds to a stage's key. A user-defined objective also adds its source."""
    kind, options = config.objective.kind, objective_options(config)
    own = {} if options is None else {section_of(kind): what(options)}
    return {**what(config.objective), **own, **OBJECTIVES.source(kind)}
