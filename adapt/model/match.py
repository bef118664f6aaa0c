"""Is this tokenizer the model's own? With another one every id means another word, and training goes on regardless."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from adapt.errors import ModelError

SMALLEST_SHARE = 0.5
"""Embeddings are often padded by some rows. A tokenizer that fills less than this share of them is another model's."""

FIX = "use the tokenizer that came with the model"


def check_match(
    tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig, source: Path, model: Path, causal: bool = False
) -> None:
    """Check a tokenizer against a model's configuration.

    Args:
        tokenizer: the tokenizer.
        config: the model's configuration.
        source: the folder the tokenizer came from, for the messages.
        model: the folder of the model, for the messages.
        causal: the model predicts next tokens: it needs an end-of-text token, and neither mask nor padding.

    Raises:
        ModelError: it has no mask token (if causal, no end-of-text token), ids without an embedding, another padding
            id, or far too few tokens.
    """
    if causal and tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer in {source} has no end-of-text token", "set eos_token in the tokenizer's files"
        )
    if not causal and tokenizer.mask_token_id is None:
        raise ModelError(f"the tokenizer in {source} has no mask token", "choose a model made for masked prediction")
    size = max(len(tokenizer), 1 + max([*tokenizer.get_vocab().values(), *tokenizer.all_special_ids]))
    rows = config.vocab_size
    sizes = f"the tokenizer in {source} has {size:,} tokens, but the model in {model} has embeddings for {rows:,}"
    if size > rows:
        raise ModelError(sizes, f"{FIX}; if you added tokens to it, resize the model's embeddings as well")
    if size < SMALLEST_SHARE * rows:
        raise ModelError(f"{sizes}, more than padding explains", FIX)
    ours, theirs = tokenizer.pad_token_id, config.pad_token_id
    if ours is not None and theirs is not None and ours != theirs:
        raise ModelError(f"the padding token is id {ours} in the tokenizer of {source} and {theirs} in {model}", FIX)


def check_same(tokenizer: PreTrainedTokenizerFast, own: PreTrainedTokenizerFast, source: Path, model: Path) -> None:
    """Check that a tokenizer given apart has the vocabulary of the one in the model's folder, id for id."""
    given, known = tokenizer.get_vocab(), own.get_vocab()
    differing = sorted(token for token in given.keys() | known.keys() if given.get(token) != known.get(token))
    if differing:
        token = differing[0]
        raise ModelError(
            f"the tokenizer in {source} is not the model's own: {len(differing):,} tokens differ, for example {token!r}"
            f" is {place(given.get(token))} there and {place(known.get(token))} in {model}",
            "leave model.tokenizer unset: the model's folder has its tokenizer",
        )


def place(number: int | None) -> str:
    """A token's id in words."""
    return "absent" if number is None else f"id {number}"
