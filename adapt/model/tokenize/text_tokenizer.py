"""Tokenizes texts by pieces where the tokenizer allows it, and by the library elsewhere. The ids are the same.

Whether cuts are allowed is tested when a process has enough text, on adversarial texts and on a sample of its own. One
process loads a tokenizer and sends it to others in written form: importing transformers and torch takes about 5 s of a
core, and a process that tokenizes needs only the `tokenizers` library.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from adapt.model.locate import Pretrained
from adapt.model.tokenize.allowed_cuts import Cuts, find_cuts
from adapt.model.tokenize.library_calls import WordsOf, by_library
from adapt.model.tokenize.piece_tokenizer import PieceTokenizer, text_batches
from adapt.model.tokenize.ragged import Ragged
from adapt.terminal.console import log

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


WORTH_CHARACTERS = 3_000_000
"""Until a process has had so much text it asks the library, which takes less time than to find out what is allowed."""
SAMPLE_CHARACTERS = 100_000
"""So much of the texts is tokenized both ways, to hold our tokens to the library's."""


class QuickTokenizer:
    """Tokenizes texts, each with its special tokens.

    Args:
        backend: of `adapt.model.tokenizer.load_text_tokenizer`. It must not be changed afterwards.
        words: says where words start (see `adapt.model.tokenize.library_calls`). If given, there are all columns of
            `adapt.model.tokenize.ragged`; else ids alone.
        worth: characters that make it worth while to find out what the tokenizer allows.
        cuts: what it allows, where another process has found that out.
    """

    def __init__(
        self,
        backend: Tokenizer,
        words: WordsOf | None = None,
        worth: int = WORTH_CHARACTERS,
        cuts: Cuts | None = None,
    ) -> None:
        self._backend, self._words, self._worth, self._cuts = backend, words, worth, cuts
        self._seen = 0
        self._pieces: PieceTokenizer | None = None
        self.refused = ""
        """Why texts go to the library for good; empty while they do not."""

    def __call__(self, texts: Sequence[str]) -> Ragged:
        """The tokens of each text."""
        if not self._pieces and not self.refused and self._is_worth_while(texts):
            self._find_out(texts)
        if self._pieces and _is_unicode(texts):
            return self._pieces(texts)
        call = partial(by_library, self._backend, words=self._words)
        return Ragged.joined([call(batch) for batch in text_batches(texts)])

    def _is_worth_while(self, texts: Sequence[str]) -> bool:
        self._seen += sum(map(len, texts))
        return self._seen >= self._worth and _is_unicode(texts)

    def _find_out(self, texts: Sequence[str]) -> None:
        cuts, sample = self._cuts or find_cuts(self._backend, self._words), _sample(texts)
        found = cuts.tokenizer(self._backend, self._words)
        if not cuts.rules:
            self.refused = "this tokenizer does not allow to cut texts at blanks"
        elif not found(sample).same(by_library(self._backend, sample, self._words)):
            self.refused = "cut at blanks, this text had other tokens"
        else:
            self._pieces = found
        if self.refused:
            log(f"texts are tokenized by the library's own call, which is slower: {self.refused}")


def _is_unicode(texts: Sequence[str]) -> bool:
    """Whether no text holds half a surrogate pair. What becomes of those, the library decides."""
    try:
        for text in texts:
            text.isascii() or text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sample(texts: Sequence[str]) -> list[str]:
    """Texts from all over, with about so many characters."""
    step = max(1, sum(map(len, texts)) // SAMPLE_CHARACTERS)
    return [text[:SAMPLE_CHARACTERS] for text in texts[::step]]


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that takes a text by its letters (see `adapt.model.tokenizer`), and what is to be known of it."""

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
    from adapt.model.tokenizer import load_text_tokenizer

    return known_of(load_text_tokenizer(pretrained))


def known_of(loaded: "PreTrainedTokenizerFast") -> TextTokenizer:
    """Returns what is to be known of a tokenizer that `adapt.model.tokenizer.load_text_tokenizer` has loaded."""
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
