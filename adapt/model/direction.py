"""Whether a model looks to both sides of a token or to the left only, and whether the objective asks for that.

Imports neither torch nor transformers, so that a job can say it at once.
"""

from __future__ import annotations

from pathlib import Path

from adapt.errors import ModelError
from adapt.model.locate import CONFIG, read_json


def check_architecture(folder: Path, causal: bool) -> None:
    """Refuse a model of the wrong kind by the name in its config.json, as far as that tells; loading knows for sure.

    Raises:
        ModelError: an encoder for next tokens, or a decoder for masked ones.
    """
    config = read_json(folder / CONFIG)
    names = config.get("architectures") or [""]
    decoder = str(names[0]).endswith(("ForCausalLM", "LMHeadModel")) and "WithLMHead" not in names[0]
    if causal and str(names[0]).endswith("ForMaskedLM"):
        raise not_a_decoder(names[0], folder)
    if not causal and decoder:
        raise not_an_encoder(names[0], folder, decoder)


def not_a_decoder(name: str, folder: Path) -> ModelError:
    """The error for a model that does not predict next tokens."""
    return ModelError(
        f"{folder} holds a {name}, but causal language modelling needs a decoder",
        "set objective.kind to mlm, or model.path to a decoder such as GPT-2 or Llama",
    )


def not_an_encoder(name: str, folder: Path, decoder: bool) -> ModelError:
    """The error for a model that does not predict masked tokens."""
    return ModelError(
        f"{folder} holds a {name}, but masked language modelling needs an encoder",
        "set model.path to an encoder with a masked-LM head, such as BERT, RoBERTa or ModernBERT"
        + (", or objective.kind to causal" if decoder else ""),
    )
