"""Tokenizers that take a text by its letters: `[MASK]` or `<s>` written in it is text, and no special token.

Web pages, documentation and papers about language models hold such words. As a special id, a mask token would be one
that nobody drew, and the end of a text would stand in its middle.
"""

import re
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer


def load_text_tokenizer(pretrained: Pretrained) -> PreTrainedTokenizerFast:
    """The tokenizer of a model, to make tokens of texts. It adds special tokens, and finds none in a text.

    It is not to be saved: users of a model write `[MASK]` into a text and mean it.

    Raises:
        ModelError: as `adapt.model.tokenizer.load_tokenizer`.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    tokenizer.split_special_tokens = True  # holds for every call; transformers then sets it in the backend too
    tokenizer.backend_tokenizer.encode_special_tokens = True
    _divide(tokenizer.backend_tokenizer, _whole(tokenizer.backend_tokenizer, tokenizer.all_special_tokens))
    return tokenizer


def _whole(backend: Tokenizer, special: Iterable[str]) -> list[str]:
    """Special tokens that are still found in a text: those that are pieces of the model, as Unigram's are."""
    added = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    return [
        token
        for token in sorted({*added, *special})
        if len(token) > 1 and backend.token_to_id(token) in backend.encode(token, add_special_tokens=False).ids
    ]


def _divide(backend: Tokenizer, tokens: list[str]) -> None:
    """Splits these tokens after their first character, before the tokenizer's model looks for its pieces."""
    if not tokens:
        return
    pattern = "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in tokens)
    division = pre_tokenizers.Split(Regex(pattern), "isolated")
    own = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([own, division]) if own else division
