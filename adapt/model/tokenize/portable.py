"""A model's tokenizer as texts need it, which one process loads for many.

transformers, and PyTorch with it, take some 5 s of a core to import. A process that tokenizes needs neither: what they
have made of a tokenizer's files is written down, and read by the `tokenizers` library alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from adapt.model.locate import Pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that takes a text by its letters (see `adapt.model.literal`), and what is to be known of it."""

    backend: Tokenizer
    size: int
    """Tokens that it knows."""
    unknown: int | None
    """The id of what it does not know; None where it knows every byte."""
    end: int | None
    """The id of the end of a text."""


def text_tokenizer(pretrained: Pretrained) -> TextTokenizer:
    """Loads the tokenizer of a model.

    Raises:
        ModelError: as `adapt.model.tokenizer.load_tokenizer`.
    """
    from adapt.model.literal import load_text_tokenizer

    return known_of(load_text_tokenizer(pretrained))


def known_of(loaded: "PreTrainedTokenizerFast") -> TextTokenizer:
    """Returns what is to be known of a tokenizer that `adapt.model.literal.load_text_tokenizer` has loaded."""
    knows_all = loaded.unk_token in (None, loaded.eos_token)  # GPT-2 names one as both, and knows every byte
    unknown = None if knows_all else loaded.unk_token_id
    return TextTokenizer(loaded.backend_tokenizer, len(loaded), unknown, loaded.eos_token_id)


def written_tokenizer(tokenizer: TextTokenizer) -> dict[str, Any] | None:
    """A tokenizer written down, for `tokenizer_of`; None where parts of it are Python code, which cannot be."""
    try:
        backend = tokenizer.backend.to_str()
    except Exception as error:  # the library has no kind of its own
        if "Custom" not in str(error):
            raise
        return None
    return {**vars(tokenizer), "backend": backend}


def tokenizer_of(written: dict[str, Any]) -> TextTokenizer:
    """The same tokenizer."""
    backend = Tokenizer.from_str(written["backend"])
    backend.encode_special_tokens = True  # how it is called, which is not written down
    return TextTokenizer(**{**written, "backend": backend})
