"""Tokenizes texts by pieces if the tokenizer allows it, and otherwise by the library. The ids are the same.

Once a process has received enough text, it tests on adversarial texts and on a sample of its own text whether texts may
be cut. One process loads a tokenizer and sends it to other processes in serialized form. So the others only need the
`tokenizers` library, and save the 5 s of CPU time for importing transformers and torch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from adapt.model.locate import Pretrained
from adapt.model.tokenize.allowed_cuts import Cuts, find_cuts
from adapt.model.tokenize.piece_tokenizer import PieceTokenizer, WordsOf, by_library, text_batches
from adapt.model.tokenize.ragged import Ragged
from adapt.terminal.console import log

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


WORTH_CHARACTERS = 3_000_000
"""A process tests the cuts after this many characters, when the test pays off. Until then it uses the library."""
SAMPLE_CHARACTERS = 100_000
"""Approximate number of characters that are tokenized by pieces and by the library, to compare the tokens."""


class QuickTokenizer:
    """Tokenizes texts with special tokens: by pieces if possible, otherwise by the library.

    Args:
        backend: a tokenizer from `adapt.model.tokenizer.load_text_tokenizer`. It must not be changed afterwards.
        words: finds the starts of words (see `adapt.model.tokenize.piece_tokenizer`). If given, the result has all
            columns of `adapt.model.tokenize.ragged`; otherwise it only has ids.
        worth: number of characters from which the allowed cuts are tested.
        cuts: the allowed cuts, if another process has tested them.
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
        """Reason why all texts are tokenized by the library from now on; empty if there is none."""

    def __call__(self, texts: Sequence[str]) -> Ragged:
        """Returns the tokens of each text."""
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
        by_pieces = cuts.tokenizer(self._backend, self._words)
        if not cuts.rules:
            self.refused = "this tokenizer does not allow to cut texts at blanks"
        elif not by_pieces(sample).same(by_library(self._backend, sample, self._words)):
            self.refused = "cut at blanks, this text had other tokens"
        else:
            self._pieces = by_pieces
        if self.refused:
            log(f"texts are tokenized by the library's own call, which is slower: {self.refused}")


def _is_unicode(texts: Sequence[str]) -> bool:
    """Whether all texts are valid Unicode. Texts with half a surrogate pair are left to the library."""
    try:
        for text in texts:
            text.isascii() or text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sample(texts: Sequence[str]) -> list[str]:
    """Returns an evenly spread sample of texts with about `SAMPLE_CHARACTERS`."""
    step = max(1, sum(map(len, texts)) // SAMPLE_CHARACTERS)
    return [text[:SAMPLE_CHARACTERS] for text in texts[::step]]


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that treats special tokens in texts as plain text (`adapt.model.tokenizer`), and its properties."""

    backend: Tokenizer
    size: int
    """Number of tokens."""
    unknown: int | None
    """Id of the unknown token; None if the tokenizer knows every byte."""
    end: int | None
    """Id of the end-of-text token; None if the tokenizer has none."""


def text_tokenizer(pretrained: Pretrained) -> TextTokenizer:
    """Loads the tokenizer of a model, for plain texts.

    Raises:
        ModelError: see `adapt.model.tokenizer.load_tokenizer`.
    """
    from adapt.model.tokenizer import load_text_tokenizer

    return known_of(load_text_tokenizer(pretrained))


def known_of(loaded: "PreTrainedTokenizerFast") -> TextTokenizer:
    """Returns the `TextTokenizer` of a tokenizer that `adapt.model.tokenizer.load_text_tokenizer` has loaded."""
    knows_all = loaded.unk_token in (None, loaded.eos_token)  # GPT-2 has one token for both, and knows every byte
    unknown = None if knows_all else loaded.unk_token_id
    return TextTokenizer(loaded.backend_tokenizer, len(loaded), unknown, loaded.eos_token_id)


def quick_tokenizer(folder: Path) -> TextTokenizer | None:
    """Loads the tokenizer of a folder from tokenizer.json, without transformers, to look at texts.

    Returns None if the folder has no such file. Stages use `text_tokenizer`, which knows all forms of tokenizers.
    """
    file = folder / "tokenizer.json"
    try:
        model = json.loads(file.read_text(encoding="utf-8"))["model"]
        backend = Tokenizer.from_file(str(file))
    except Exception:  # the library has no error type of its own; stages report a tokenizer that cannot be loaded
        return None
    backend.no_truncation()
    backend.no_padding()
    unknown = model.get("unk_id") if "unk_id" in model else backend.token_to_id(model.get("unk_token") or "")
    return TextTokenizer(backend, backend.get_vocab_size(), unknown, None)


def written_tokenizer(tokenizer: TextTokenizer) -> dict[str, Any] | None:
    """Serializes a tokenizer for `tokenizer_of`. Returns None if parts of it are Python code (not serializable)."""
    try:
        backend = tokenizer.backend.to_str()
    except Exception as error:  # the library has no error type of its own
        if "Custom" not in str(error):
            raise
        return None
    return {**vars(tokenizer), "backend": backend}


def tokenizer_of(written: dict[str, Any]) -> TextTokenizer:
    """Restores a tokenizer that `written_tokenizer` has serialized."""
    backend = Tokenizer.from_str(written["backend"])
    backend.encode_special_tokens = True  # this setting is not serialized
    return TextTokenizer(**{**written, "backend": backend})
