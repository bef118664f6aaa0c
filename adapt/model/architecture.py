"""Reads facts about a model's architecture from its config.json, before the model is loaded.

- The names of the parts of a transformer layer. Each supported architecture has a `Pattern`.
- The longest sequence that the model accepts.
- Whether the model is an encoder or a decoder, and whether it fits the training objective.
- Whether the model was trained to follow instructions, that is, has a chat template.

This module imports neither torch nor transformers, so that a job can report an unsuitable model before they are loaded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from adapt.model.additions.table import stored_additions
from adapt.model.locate import CONFIG, TEMPLATES, TOKENIZER_CONFIG, Pretrained, listed, read_json
from adapt.model.size import tensor_shapes
from adapt.support.errors import ConfigError, ModelError
from adapt.terminal.console import log

Way = Literal["packed", "shared rows", "padded", "by length"]
"""How a model accepts documents: packed into one sequence, as rows with several documents each (`shared rows`), as
padded rows with one document each, or as unpadded rows of equal length with one document each (`by length`)."""
WHY: dict[Way, str] = {
    "shared rows": "attention cannot separate the documents of a packed sequence, so each row has several documents and"
    " a mask that hides the other documents from each token",
    "padded": "documents cannot share a sequence, so each document is computed as a separate padded row",
    "by length": "padding would change the model's outputs, so only documents of exactly the same length are computed"
    " together",
}
"""For each way to compute documents as rows, the reason why a model needs it. The texts are shown to users."""


@dataclass(frozen=True)
class Pattern:
    """Names of the modules that are the parts of a layer in one architecture."""

    layers: str
    """Name of the list of layers, relative to base_model."""
    query: str
    key: str
    value: str
    attention_out: str
    """Name of the last linear layer of the attention. Its input is the concatenated outputs of all heads."""
    inner: tuple[str, ...]
    """Names of the modules that compute the feed-forward block's inner neurons. Gated blocks may have two modules."""
    outer: str
    """Name of the module that computes the output neurons of the feed-forward block."""
    fused: bool = False
    """Whether a single module computes queries, keys and values, in this order."""


_BERT = Pattern(
    layers="encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention_out="attention.output.dense",
    inner=("intermediate.dense",),
    outer="output.dense",
)
_LLAMA = Pattern(
    layers="layers",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attention_out="self_attn.o_proj",
    inner=("mlp.gate_proj", "mlp.up_proj"),
    outer="mlp.down_proj",
)
PATTERNS: dict[str, Pattern] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "distilbert": Pattern(
        layers="transformer.layer",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_out="attention.out_lin",
        inner=("ffn.lin1",),
        outer="ffn.lin2",
    ),
    "modernbert": Pattern(
        layers="layers",
        query="attn.Wqkv",
        key="attn.Wqkv",
        value="attn.Wqkv",
        attention_out="attn.Wo",
        inner=("mlp.Wi",),
        outer="mlp.Wo",
        fused=True,
    ),
    "gpt2": Pattern(
        layers="h",
        query="attn.c_attn",
        key="attn.c_attn",
        value="attn.c_attn",
        attention_out="attn.c_proj",
        inner=("mlp.c_fc",),
        outer="mlp.c_proj",
        fused=True,
    ),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA),
}
"""Names of the layers' parts, keyed by `model_type` in config.json."""

SHARED_LAYERS = {"albert"}
"""Model types whose layers share their weights."""
_IN_LIST = re.compile(r"(.*?)\.\d+\.")

HEADS = {
    "bert": "cls.predictions.",
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), "lm_head."),
    "electra": "generator_",
    "distilbert": "vocab_transform.",
    "modernbert": "head.",
}
"""Prefix of the names of the language-model head's weights, keyed by the `model_type` of an encoder."""

DETECTORS = {"electra": "discriminator_predictions.", "deberta-v2": "mask_predictions."}
"""Prefix of the names of weights in the head that finds replaced tokens. The keys are the `model_type` of encoders that
were published with such a head."""


def check_detector(folder: Path) -> None:
    """Checks by its config.json that a model can be trained to find replaced tokens.

    Raises:
        ModelError: the model is a decoder, or its family has no head for replaced tokens.
    """
    kind = str(read_json(folder / CONFIG).get("model_type"))
    if kind not in DETECTORS:
        raise ModelError(
            f"{folder} is a {kind} model, but objective.kind rtd supports only model families that were published with"
            f" a head that detects replaced tokens: {', '.join(sorted(DETECTORS))}",
            "set model.path to an ELECTRA or DeBERTa-v3 model, or objective.kind to mlm (causal for a decoder)",
        )


def is_detector(folder: Path) -> bool:
    """Whether a model's weights include a head that finds replaced tokens, but no head that predicts tokens."""
    kind = str(read_json(folder / CONFIG).get("model_type"))
    if kind not in DETECTORS:
        return False
    names = tensor_shapes(folder)
    has_head = {head: any(name.startswith(head) for name in names) for head in (DETECTORS[kind], HEADS.get(kind, ""))}
    return has_head[DETECTORS[kind]] and not (kind in HEADS and has_head[HEADS[kind]])


def unequal_tables(generator: str, fault: str) -> ModelError:
    """Returns the error for a generator whose tables of embeddings the discriminator cannot use."""
    return ModelError(
        f"the generator {generator} has {fault}",
        "set rtd.embeddings to separate (or to disentangled, if only the values differ)",
    )


def pattern_of(kind: str) -> Pattern:
    """Returns the names of the parts of the layers of an architecture, given its `model_type`.

    Raises:
        ModelError: the architecture is not supported.
    """
    if kind not in PATTERNS:
        raise ModelError(
            f"the layer names of {kind} models are not known (known model types: {', '.join(sorted(PATTERNS))})",
            f"set method.kind to plain, or add a Pattern for {kind!r} to adapt/model/architecture.py, and a test",
        )
    return PATTERNS[kind]


def layer_list(names: Iterable[str], kind: str) -> str:
    """Returns the name of the list of layers of a model with `model_type` `kind`, such as `encoder.layer`.

    For a model type outside of PATTERNS, this is the only list in the names of the model's parameters.

    Raises:
        ModelError: the layers share their weights, or the names contain no list or several lists.
    """
    if kind in PATTERNS:
        return PATTERNS[kind].layers
    fix = (
        "leave out training.layer_decay, model.reinitialize_top, and layers:N in training.freeze, or choose another"
        " model"
    )
    if kind in SHARED_LAYERS:
        raise ModelError(f"the layers of {kind} models share their weights, so single layers cannot be chosen", fix)
    lists = sorted({found[1] for name in names if (found := _IN_LIST.match(name))})
    if len(lists) != 1:
        several = f"several lists of modules: {listed(lists)}" if lists else "no list of modules"
        raise ModelError(
            f"the layers of {kind} models cannot be found, because the names of their parameters contain {several}", fix
        )
    return lists[0]


def check_units(folder: Path) -> None:
    """Checks that attention heads and neurons of a model can be located, because its `model_type` is supported.

    Raises:
        ModelError: the architecture is not supported. The error lists the supported architectures.
    """
    pattern_of(str(read_json(folder / CONFIG).get("model_type")))


@cache
def try_unknown(
    folder: Path,
    causal: bool | None,
    trust_remote_code: bool = False,
    only_earlier: bool = False,
    in_blocks: str | None = None,
) -> Way | None:
    """Tests an architecture that is not in PATTERNS with a small random model (`adapt.model.load.check_loads`).

    Architectures in PATTERNS need no test: they accept packed documents, and their heads end in a linear layer.

    Returns:
        How the architecture accepts documents. None if the architecture is in PATTERNS, or if only the full model can
        show this.

    Raises:
        ModelError: see `adapt.model.load.check_loads`, which also describes the arguments.
    """
    if str(read_json(folder / CONFIG).get("model_type")) in PATTERNS:
        return None
    from adapt.model.load import check_loads  # imported here, because it loads torch

    return check_loads(folder, causal, trust_remote_code, only_earlier, in_blocks)


def check_deeper(folder: Path, field: str) -> None:
    """Checks that layers can be inserted into a model, that is, that no layer's computation depends on its index.

    Args:
        folder: folder of the model.
        field: field of the configuration that adds layers.

    Raises:
        ModelError: the model is a GPT-2 whose attention scale depends on the layer's index.
    """
    if read_json(folder / CONFIG).get("scale_attn_by_inverse_layer_idx"):
        raise ModelError(
            f"{field} adds layers, but {folder} scales the attention of each layer by the layer's index"
            " (scale_attn_by_inverse_layer_idx), so new layers would change the outputs of the layers above them",
            "choose a model without this setting, or another method",
        )


def grow_layer_lists(config: Any, sources: Sequence[int]) -> None:
    """Extends the lists in a transformers config that have one entry per layer, such as `layer_types`, to more layers.

    Args:
        config: a config with the old number of layers, which is changed in place.
        sources: for each layer of the larger model, the number of the old layer from which its entries are copied.
    """
    layers = max(sources) + 1
    for name, value in config.to_dict().items():
        if "layer" in name and isinstance(value, list) and len(value) == layers:
            setattr(config, name, [value[source] for source in sources])


COUNT_FROM_PADDING = {
    *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text"),
    *("xmod", "ibert", "mpnet", "longformer", "luke", "esm"),
}
"""Model types in which positions start at pad_token_id + 1, so the first rows of the position table are not used."""

PROMPTS = "prompts"
"""Name of prompts in the list of a model's additions. The vectors of a prompt take positions that text could use."""


def first_position(config: Any) -> int:
    """Returns the position number of a document's first token, for a model with this transformers configuration."""
    return int(config.pad_token_id) + 1 if config.model_type in COUNT_FROM_PADDING else 0


def max_sequence_length(folder: Path) -> int | None:
    """Returns the maximum sequence length of a model [tokens]; None if the model's config sets no limit."""
    limits = [limit for limit in (_positions(folder), unscaled_length(folder)) if limit is not None]
    prompts = sum(entry["length"] for entry in stored_additions(folder) if entry["kind"] == PROMPTS)
    return min(limits) - prompts if limits else None


def _positions(folder: Path) -> int | None:
    """Returns the number of positions for tokens that a model has; None if its config does not give this number."""
    config = read_json(folder / CONFIG)
    positions = config.get("max_position_embeddings", config.get("n_positions"))  # GPT-2 uses `n_positions`
    if not isinstance(positions, int):
        return None
    if config.get("model_type") in COUNT_FROM_PADDING:
        return positions - int(config.get("pad_token_id", 1)) - 1
    return positions


def unscaled_length(folder: Path) -> int | None:
    """Returns the length up to which LongRoPE (Phi-3) does not rescale positions; None for models without LongRoPE.

    In a longer sequence, LongRoPE changes the rotations of all tokens, including tokens of short documents that are
    packed into the sequence. (Dynamic scaling also changes rotations, but only in sequences with more tokens than the
    model has positions. Such sequences are not allowed.)
    """
    config = read_json(folder / CONFIG)
    settings = [config.get("rope_parameters"), config.get("rope_scaling")]  # older files use `rope_scaling`
    ropes = [rope for rope in settings if isinstance(rope, Mapping)]
    ropes += [
        part for rope in ropes for part in rope.values() if isinstance(part, Mapping)
    ]  # some files have separate settings per type of layer
    name = "original_max_position_embeddings"
    lengths = [config.get(name, rope.get(name)) for rope in ropes if "long_factor" in rope]
    return min((length for length in lengths if isinstance(length, int)), default=None)


def check_sequence_length(folder: Path, wanted: int, field: str) -> None:
    """Checks that a configured sequence length is not longer than the model accepts.

    Args:
        folder: folder of the model.
        wanted: length of sequences [tokens].
        field: field of the configuration with this length.

    Raises:
        ConfigError: the length is too large. The error names the field and the maximum length.
    """
    longest = max_sequence_length(folder)
    if longest is not None and wanted > longest:
        beyond = ", because with LongRoPE a longer document would change the outputs of other documents in its sequence"
        why = beyond if longest == unscaled_length(folder) != _positions(folder) else ""
        raise ConfigError(
            f"{field} is {wanted}, but the model takes {longest} tokens{why}", f"set {field} to {longest} or less"
        )


def check_architecture(folder: Path, causal: bool, shifted: bool = False, turned: bool = False) -> None:
    """Checks by a model's config.json that the objective suits it, as an encoder or as a decoder.

    `adapt.model.load` checks this again when it loads the model.

    Args:
        folder: folder of the model.
        causal: whether the objective predicts next tokens.
        shifted: whether the objective predicts each masked token at the position before it.
        turned: whether `model.attention: bidirectional` converts the model from a decoder to an encoder.

    Raises:
        ModelError: an encoder would have to predict next tokens or be converted to an encoder; a decoder would have to
            predict masked tokens; a decoder with bidirectional attention has another objective than `mntp`; or `mntp`
            is used with a model that is not such a decoder.
    """
    config = read_json(folder / CONFIG)
    name, decoder = _named(config)
    if turned:
        check_turnable(folder)
    is_turned = decoder and (turned or config.get("is_causal") is False)
    if is_turned != shifted:
        raise turned_wrongly(folder, is_turned)
    if shifted:
        return
    if causal and name.endswith("ForMaskedLM"):
        raise not_a_decoder(name, folder)
    if not causal and decoder:
        raise not_an_encoder(name, folder, decoder)


def check_turnable(folder: Path) -> None:
    """Checks that a model's config.json names a decoder, because only decoders can be converted to encoders.

    Raises:
        ModelError: the model is not a decoder.
    """
    name, decoder = _named(read_json(folder / CONFIG))
    if not decoder:
        raise ModelError(
            f"model.attention is bidirectional, but {folder} holds a {name}, which is not a decoder",
            "leave model.attention out",
        )


SAVABLE = {"bert": ("bert.pooler.dense", "classifier"), "roberta": ("classifier.dense", "classifier.out_proj")}
"""Model types whose classifier in transformers equals ours, with the names of the two layers of its head.
For `tokens`, the head is one layer, `classifier`."""


def check_savable(folder: Path, mode: str, pooling: str) -> None:
    """Raises an error for `finetune.save_model` if transformers has no classifier equivalent to ours.

    Args:
        folder: folder of the model.
        mode: `finetune.mode`.
        pooling: pooling of the run; for tasks of kind `tokens`, which do not pool, `first`.

    Raises:
        ConfigError: the mode, pooling or model type cannot be saved.
    """
    if mode != "fine_tune":
        raise ConfigError(
            f"finetune.save_model works only with finetune.mode fine_tune, not with {mode}",
            "leave finetune.save_model off, or set finetune.mode to fine_tune",
        )
    family = read_json(folder / CONFIG).get("model_type", "")
    if family not in SAVABLE or pooling != "first":
        pooled = "" if family not in SAVABLE else f" with finetune.pooling {pooling}"
        raise ConfigError(
            "finetune.save_model is set, but transformers has no classifier with the same layers for model type"
            f" {family!r}{pooled}",
            f"leave finetune.save_model off, or use a model of type {' or '.join(sorted(SAVABLE))} and finetune.pooling"
            " first",
        )


def is_decoder_folder(folder: Path) -> bool:
    """Whether the config.json of a model names a decoder with a language-model head."""
    return _named(read_json(folder / CONFIG))[1]


def _named(config: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the name of the class in a config.json, and whether it is a decoder with a language-model head."""
    name = str((config.get("architectures") or [""])[0])
    return name, name.endswith(("ForCausalLM", "LMHeadModel")) and "WithLMHead" not in name


def turned_wrongly(folder: Path, is_turned: bool) -> ModelError:
    """Returns the error for a bidirectional decoder without objective mntp, or for mntp with any other model."""
    if is_turned:
        return ModelError(
            f"{folder} is a decoder with bidirectional attention, which predicts each token at the position before it",
            "set objective.kind to mntp",
        )
    return ModelError(
        f"objective.kind mntp needs a decoder with bidirectional attention, but {folder} is not one",
        "set model.attention to bidirectional for a decoder, or objective.kind to mlm for an encoder",
    )


def not_a_decoder(name: str, folder: Path) -> ModelError:
    """Returns the error for a model that cannot predict next tokens."""
    return ModelError(
        f"{folder} holds a {name}, but causal language modelling needs a decoder",
        "set objective.kind to mlm (or to causal_detour, which makes an encoder causal for a phase), or model.path to a"
        " decoder such as GPT-2 or Llama",
    )


def not_an_encoder(name: str, folder: Path, decoder: bool) -> ModelError:
    """Returns the error for a model that cannot predict masked tokens."""
    return ModelError(
        f"{folder} holds a {name}, but masked language modelling needs an encoder",
        "set model.path to an encoder with a masked-LM head, such as BERT, RoBERTa or ModernBERT"
        + (", or objective.kind to causal and leave out model.head, which is for encoders" if decoder else ""),
    )


def is_instruct(tokenizer: Path) -> bool:
    """Whether the folder of a tokenizer has a chat template, so that its model is an instruct model."""
    settings = tokenizer / TOKENIZER_CONFIG
    in_settings = settings.is_file() and bool(read_json(settings).get("chat_template"))
    return in_settings or any((tokenizer / name).exists() for name in TEMPLATES)


@cache
def warn_of_instruct(pretrained: Pretrained) -> None:
    """Logs a warning if a model to be trained further is an instruct model, at most once per model and process."""
    if is_instruct(pretrained.tokenizer):
        log(
            f"warning: {pretrained.model} is an instruct model (it has a chat template); training on plain text makes"
            " such models forget to follow instructions: adapt the base model that it was made from, then add what the"
            " instruct model learnt (job: merge, merge.kind: residual; docs/guide/merging.md)"
        )
