"""Reads and writes the settings by which sentence-transformers turns the token states of a text into one vector.

A folder of sentence-transformers has modules.json, which lists the modules of the model in order: a transformer, a
pooling of its last hidden states, and optionally a scaling of the vectors to length 1. This module reads these
settings, and adds them to an exported folder. The files have the format of
version 2 of sentence-transformers, which later versions read too. transformers ignores these files.
This module imports neither torch nor transformers. Only `write_sentence_vectors` may load a tokenizer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.model.additions.table import refuse_additions
from adapt.model.architecture import check_sequence_length, max_sequence_length
from adapt.model.locate import (
    CONFIG,
    MODULES,
    SENTENCE_LENGTHS,
    SENTENCE_SETTINGS,
    TOKENIZER_CONFIG,
    has_tokenizer,
    read_json,
    read_list,
)
from adapt.runner.files import make_folder, write_atomically
from adapt.support.errors import ConfigError, ModelError
from adapt.terminal.console import log

POOLING, NORMALIZE = "1_Pooling", "2_Normalize"
MODES = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Names of the boolean settings that select a pooling in sentence-transformers, keyed by the pooling's name."""
FEATURES = {"mean": "mean", "cls": "first"}
"""Poolings of `adapt.model.states.document_states`, keyed by their names in sentence-transformers."""


@dataclass(frozen=True)
class SentenceVectors:
    """How token states become one vector per text."""

    pooling: str
    """Name of the pooling in sentence-transformers, such as `mean`."""
    normalize: bool = False
    """Whether vectors are scaled to length 1."""
    max_length: int | None = None
    """Length to which texts are truncated [tokens]; None for no limit."""
    lowercase: bool = False
    """Whether texts are lower-cased before they are tokenized."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings: prompts, and the name of the similarity function for which the model was trained."""


@cache  # cached, so that the log line appears once although a job calls this function several times
def read_sentence_vectors(folder: Path) -> SentenceVectors | None:
    """Reads how a model computes sentence vectors.

    Args:
        folder: folder of the transformer, which is the folder of the whole model or a subfolder of it.

    Returns:
        The settings. None if the folder is not in the format of sentence-transformers, or if its settings are not
        supported: modules other than transformer, pooling and scaling, or several poolings. Unsupported settings are
        logged.
    """
    root = next((place for place in (folder, folder.parent) if _is_of(place, folder)), None)
    if root is None:
        return None
    modules = {str(module.get("type", "")).rpartition(".")[2]: str(module.get("path", "")) for module in _modules(root)}
    others = [name for name in modules if name not in ("Transformer", "Pooling", "Normalize")]
    modes = _modes(_settings(root / modules["Pooling"] / CONFIG)) if "Pooling" in modules else []
    if others or len(modes) != 1 or modes[0] not in MODES:
        reason = f"module {others[0]}" if others else f"pooling {', '.join(modes) or 'none'}"
        log(
            f"the sentence-transformers settings of {root} ({reason}) are not supported and will not be exported: set"
            " export.sentence_transformers to mean or cls to export a model for sentence vectors"
        )
        return None
    lengths, settings = _settings(folder / SENTENCE_LENGTHS), _settings(root / SENTENCE_SETTINGS)
    longest = lengths.get("max_seq_length")
    return SentenceVectors(
        modes[0],
        "Normalize" in modules,
        longest if isinstance(longest, int) else None,
        bool(lengths.get("do_lower_case")),
        {name: settings[name] for name in ("prompts", "default_prompt_name", "similarity_fn_name") if name in settings},
    )


def _is_of(root: Path, folder: Path) -> bool:
    """Returns whether the modules.json in `root` names `folder` as the folder of the transformer."""
    places = [str(m.get("path", "")) for m in _modules(root) if str(m.get("type", "")).endswith("Transformer")]
    return bool(places) and (root / places[0]).resolve() == folder.resolve()


def _modules(root: Path) -> list[dict[str, Any]]:
    return [module for module in read_list(root / MODULES) if isinstance(module, dict)]


def _settings(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _modes(pooling: Mapping[str, Any]) -> list[str]:
    """Returns the poolings that a Pooling module combines, from settings written by any version of the library."""
    if "pooling_mode" in pooling:
        modes = pooling["pooling_mode"]
        return [modes] if isinstance(modes, str) else list(modes)
    return [name for name, switch in MODES.items() if pooling.get(switch)]


def exported_vectors(
    config: Config, folder: Path, trained: str | None = None, needed_by: Sequence[str] = ()
) -> SentenceVectors | None:
    """Returns how exported models compute sentence vectors. None if the job's models are not for sentence vectors.

    Args:
        config: configuration of the job.
        folder: folder of the initial model.
        trained: pooling with which the objective trains vectors. None if it trains no vectors.
        needed_by: names of kinds in export.kinds that need sentence vectors. If there are any, the default pooling is
            mean.

    Raises:
        ConfigError: a setting contradicts the objective, a decoder is pooled at its first token, or texts could be
            longer than the model's maximum input.
    """
    export = config.export
    asked = export.sentence_transformers
    if asked == "none" and needed_by:
        raise ConfigError(
            f"export.sentence_transformers is none, but export.kinds needs sentence vectors for {', '.join(needed_by)}",
            "set export.sentence_transformers to mean or cls, or leave it out",
        )
    if asked == "none":
        return None
    if asked and trained and asked != trained:
        raise ConfigError(
            f"export.sentence_transformers is {asked}, but {config.objective.kind} trains vectors with"
            f" {trained} pooling",
            f"set {config.objective.kind}.pooling to {asked}, or leave export.sentence_transformers out",
        )
    source = read_sentence_vectors(folder)
    pooling = asked or trained or (source.pooling if source else None) or ("mean" if needed_by else None)
    if pooling is None:
        return None
    if pooling == "cls" and config.objective.kind == "causal":
        raise ConfigError(
            "export.sentence_transformers is cls, but the first token of a decoder sees no other token",
            "set export.sentence_transformers to mean",
        )
    if export.max_length:
        check_sequence_length(folder, export.max_length, "export.max_length")
    kept = replace(source, pooling=pooling) if source else SentenceVectors(pooling)
    return replace(
        kept,
        normalize=kept.normalize if export.normalize is None else export.normalize,
        max_length=export.max_length or kept.max_length or max_sequence_length(folder),
    )


def write_sentence_vectors(vectors: SentenceVectors, folder: Path) -> None:
    """Adds files to a folder of transformers, so that sentence-transformers can load the folder too.

    A tokenizer without a pad token gets one, because sentence-transformers pads the texts of a batch.

    Raises:
        ModelError: the model has added modules, such as adapters, which sentence-transformers would ignore.
    """
    refuse_additions(folder, "loaded by sentence-transformers (export.sentence_transformers)")
    config = read_json(folder / CONFIG)
    width = config.get("hidden_size", config.get("dim", config.get("n_embd")))
    modules = [("", "Transformer"), (POOLING, "Pooling"), *([(NORMALIZE, "Normalize")] if vectors.normalize else [])]
    lengths = {"max_seq_length": vectors.max_length, "do_lower_case": vectors.lowercase}
    pooling = {"word_embedding_dimension": width, **{switch: name == vectors.pooling for name, switch in MODES.items()}}
    settings = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine", **vectors.settings}
    files = {
        MODULES: [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules)
        ],
        SENTENCE_LENGTHS: {name: value for name, value in lengths.items() if value is not None},
        SENTENCE_SETTINGS: settings,
        f"{POOLING}/{CONFIG}": pooling,
        **({f"{NORMALIZE}/{CONFIG}": {}} if vectors.normalize else {}),
    }
    for name, content in files.items():
        make_folder((folder / name).parent)
        write_atomically(folder / name, json.dumps(content, indent=2))
    _add_pad_token(folder, config.get("pad_token_id"))


def _add_pad_token(folder: Path, number: Any) -> None:
    """Adds a pad token to a tokenizer that has none, as most decoders.

    The pad token is the token with id `number`, the `pad_token_id` of config.json, or else the end-of-text token. The
    file tokenizer_config.json is replaced, so that a file to which it is a link stays unchanged.
    """
    file = folder / TOKENIZER_CONFIG
    settings = _settings(file)
    if settings.get("pad_token") or not has_tokenizer(folder):
        return
    from adapt.model.tokenizer import load_config, read_tokenizer

    try:
        tokenizer = read_tokenizer(folder, load_config(folder), trust_remote_code=False)
    except ModelError:  # such as a tokenizer with its own code, which sentence-transformers does not run either
        return
    if tokenizer.pad_token is None:
        known = isinstance(number, int) and 0 <= number < len(tokenizer)
        token = tokenizer.convert_ids_to_tokens(number) if known else tokenizer.eos_token
        if token:
            write_atomically(file, json.dumps({**settings, "pad_token": token}, indent=2, ensure_ascii=False))


def vectors_what(vectors: SentenceVectors | None) -> dict[str, Any]:
    """Returns the part of a stage's key that describes its sentence vectors."""
    return {"sentence_vectors": asdict(vectors)} if vectors else {}
