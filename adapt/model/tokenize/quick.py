"""How this package tokenizes texts: by pieces where the tokenizer allows it, else by the library; the ids are the same.

It is found out once a process has some text to tokenize, on adversarial texts and on a sample of its own.
"""

from collections.abc import Sequence
from functools import partial

from tokenizers import Tokenizer

from adapt.console import log
from adapt.model.tokenize.library import WordsOf, by_library
from adapt.model.tokenize.pieced import PieceTokenizer, text_batches
from adapt.model.tokenize.ragged import Ragged
from adapt.model.tokenize.trial import Cuts, find_cuts

WORTH_CHARACTERS = 3_000_000
"""Until a process has had so much text it asks the library, which takes less time than to find out what is allowed."""
SAMPLE_CHARACTERS = 100_000
"""So much of the texts is tokenized both ways, to hold our tokens to the library's."""


class QuickTokenizer:
    """Tokenizes texts, each with its special tokens.

    Args:
        backend: of `adapt.model.literal.load_text_tokenizer`. It must not be changed afterwards.
        words: says where words start (see `adapt.model.tokenize.library`). If given, there are all columns of
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
