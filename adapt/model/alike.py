"""Are two tokenizers the same? Their files do not say: transformers writes others than it reads."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer


@cache
def are_alike(one: Pretrained, other: Pretrained) -> bool:
    """Whether two tokenizers make the same ids of every text, with the same special tokens.

    Raises:
        ModelError: one cannot be loaded, or does not belong to its model.
    """
    return _identity(one) == _identity(other)


def _identity(pretrained: Pretrained) -> dict[str, Any]:
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    return {**json.loads(tokenizer.backend_tokenizer.to_str()), "special": tokenizer.special_tokens_map}
