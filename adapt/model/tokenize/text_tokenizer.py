"""Tokenizes texts by pieces if the tokenizer allows it, and otherwise by the library. The ids are the same.

Once a process has received enough text, it tests on adversarial texts and on a sample of its own text whether texts may
be cut. The adversarial texts are built from Unicode characters and from the tokenizer's own tokens. A rule for cutting
texts is allowed if it does not change the words of any of these texts. Words are what the tokenizer's model receives
after normalization and pre-tokenization, so they do not depend on the vocabulary. Finally, the tokens of the texts, cut
by all allowed rules, are compared with the library's tokens. This also tests added tokens.

One process loads a tokenizer and sends it to other processes in serialized form. The other processes then
only need the `tokenizers` library, and save the 5 s of CPU time for importing transformers and torch.
"""

import json
import random
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from adapt.model.locate import Pretrained
from adapt.model.tokenize.cuts import RULES, cut, table_of
from adapt.model.tokenize.piece_tokenizer import (
    DirectWords,
    PieceTokenizer,
    Plain,
    Ragged,
    WordsOf,
    by_library,
    handed,
    plain_of,
    text_batches,
)
from adapt.terminal.console import log

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


MOST_ADDED = 1000
"""Tokenizers with more added tokens than this are not tested. For these tokenizers, texts are not cut.

A test would take long, because it covers each added token. Tokenizers match added tokens before they split a text.
"""


@dataclass(frozen=True)
class Cuts:
    """The allowed rules for cutting texts, for one tokenizer. Objects of this class can be sent to other processes."""

    rules: tuple[str, ...] = ()
    """Names of the allowed rules. If there are none, texts are not cut."""
    plain: Plain | None = None
    """How plain words are recognized; None if all pieces are tokenized by the library."""

    def tokenizer(self, backend: Tokenizer, words: WordsOf | None = None) -> PieceTokenizer:
        """Returns a tokenizer that uses these rules. The arguments are those of `find_cuts`."""
        return PieceTokenizer(backend, self.rules, words, DirectWords(backend, self.plain) if self.plain else None)


def find_cuts(backend: Tokenizer, words: WordsOf | None = None) -> Cuts:
    """Finds the rules with which all adversarial texts get the same tokens as from the library (`by_library`)."""
    if not _can_be_tried(backend):
        return Cuts()
    texts = probes(backend)
    rules = allowed_rules(backend, texts)
    if not rules:
        return Cuts()
    finds_added = any(not token.special for token in backend.get_added_tokens_decoder().values())
    found = Cuts(tuple(rules), None if words or finds_added else plain_of(backend, plain_words(texts)))
    return found if found.tokenizer(backend, words)(texts).same(by_library(backend, texts, words)) else Cuts()


def allowed_rules(backend: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Returns the rules that together change the words of no text; an empty list if cuts at spaces change words."""
    words = cache(lambda text: handed(backend, text))
    truth = [words(text) for text in texts]
    chosen: list[str] = []
    for rule in RULES:
        if _by_pieces(texts, [*chosen, rule], words) == truth:
            chosen.append(rule)
        elif not chosen:
            break
    return chosen


def _by_pieces(texts: Sequence[str], rules: Sequence[str], words: Callable[[str], list[str]]) -> list[list[str]]:
    """Returns the words of each text, computed piece by piece."""
    parts = cut(texts, table_of(rules))
    distinct = [words(piece.decode()) for piece in parts.pieces.dictionary.to_pylist()]
    numbers, firsts = parts.pieces.indices.to_pylist(), parts.firsts.tolist()
    return [
        list(chain.from_iterable(distinct[number] for number in numbers[begin:end])) for begin, end in pairwise(firsts)
    ]


def _can_be_tried(backend: Tokenizer) -> bool:
    """Whether rules can be tested: the tokenizer is deterministic, does not truncate or pad, has few added tokens."""
    if backend.truncation or backend.padding or getattr(backend.model, "dropout", None):
        return False
    return len(backend.get_added_tokens_decoder()) <= MOST_ADDED


LONGEST_LITERAL = 64
"""Maximum length of the vocabulary pieces and strings in settings that are tested [characters]."""
MOST_PIECES = 400
"""Maximum number of pieces in each sample of the vocabulary."""
_PLAIN_WORD = re.compile(" ?[A-Za-z]+")
_SURROGATES = re.compile("[\ud800-\udfff]")


def probes(backend: Tokenizer) -> list[str]:
    """Returns the adversarial texts for a tokenizer. The same tokenizer always has the same texts.

    Args:
        backend: the tokenizer. The texts contain parts of its vocabulary, its added tokens and its patterns.
    """
    own = [*literals(backend), *(token.content for token in backend.get_added_tokens_decoder().values())]
    atoms = [*WORDS, *SIGNS, *BLANKS, *own]
    return [
        "",
        " ",
        "\n",
        *_alone(atoms),
        *_signs(),
        *_contractions(),
        *_mixed(own),
        *_lines(probe_vocabulary(backend)),
    ]


def probe_vocabulary(backend: Tokenizer) -> list[str]:
    """Returns vocabulary entries as text: some plain words, and for each rule some entries that the rule would cut."""
    pieces = sorted(backend.get_vocab(with_added_tokens=False))
    texts = [re.sub("[Ġ▁]", " ", piece).replace("Ċ", "\n").removeprefix("##") for piece in pieces]
    texts = [text for text in dict.fromkeys(texts) if len(text) <= LONGEST_LITERAL and not _SURROGATES.search(text)]
    sample = _some([text for text in texts if _PLAIN_WORD.fullmatch(text)])
    for rule in RULES:
        parts = cut([f"{text}a" for text in texts], table_of([rule]))
        owners = np.repeat(np.arange(len(texts)), np.diff(parts.firsts))
        inside = (parts.places > 0) & (parts.places < np.array([*map(len, texts)], np.int64)[owners])
        sample += _some([texts[number] for number in np.unique(owners[inside])])
    return list(dict.fromkeys(sample))


def literals(backend: Tokenizer) -> list[str]:
    """Returns all strings in the settings of normalizer and pre-tokenizer, such as strings that they replace."""
    parts = [part for part in (backend.normalizer, backend.pre_tokenizer) if part is not None]
    texts = [text for part in parts for text in _strings(json.loads(part.__getstate__()))]
    return [text for text in dict.fromkeys(texts) if 0 < len(text) <= LONGEST_LITERAL]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _alone(atoms: Iterable[str]) -> list[str]:
    """Returns one test text per atom (a short string). Each text has its atom next to spaces and plain characters."""
    return [
        f"{atom} a{atom} {atom}b a{atom}b a {atom} b,{atom} 1{atom}1 {atom}\n{atom} x\n{atom}\ny ({atom}) é{atom}"
        for atom in atoms
    ]


def _signs() -> list[str]:
    """Returns texts with all pairs of ASCII punctuation signs next to letters, digits and spaces."""
    return [
        "".join(
            f"ab{first}{other}cd 1{first}{other}2 é{first}{other} {first}a{other}\n" for other in string.punctuation
        )
        for first in string.punctuation
    ]


def _contractions() -> list[str]:
    """Returns texts with English contractions, which many patterns match, each followed by a letter."""
    ends = ("s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "VE", "M", "LL", "D", "n", "N", "em")
    return [
        " ".join(f"it{quote}{end}{letter}a {quote}{end}{letter}" for letter in string.ascii_letters for end in ends)
        for quote in ("'", "\u2019")
    ]


def _mixed(own: Sequence[str]) -> list[str]:
    """Returns random texts of words, signs, whitespace, control characters and the tokenizer's own tokens."""
    draw = random.Random(0)
    kinds = [WORDS, SIGNS, BLANKS, [" "], [" "], [" "], [""], string.ascii_letters, string.digits, string.punctuation]
    kinds += [own] if own else []
    return ["".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(1, 60))) for _ in range(400)]


def _lines(pieces: Sequence[str]) -> list[str]:
    """Returns texts with pieces of the vocabulary next to spaces and next to each other."""
    return [
        " ".join(f"{piece} x{piece}y{other}" for piece, other in zip(part, [*part[1:], part[0]], strict=True))
        for part in (pieces[start : start + 50] for start in range(0, len(pieces), 50))
    ]


def _some(texts: list[str]) -> list[str]:
    return texts[:: len(texts) // MOST_PIECES + 1]


def plain_words(texts: Iterable[str]) -> list[str]:
    """Returns the ASCII words of texts, each with and without a leading space."""
    words = {word for text in texts for word in re.findall("[!-~]+", text)}
    return [mark + word for word in sorted(words) for mark in ("", " ")]


# ruff: noqa: RUF001 - ambiguous characters are intended

_WORDS = """
    a the Hello ÜBER naïve İI ß Σς ΑΣ Жизнь ǅ K ﬁn ªº 日本語 한국어 ไทยคำ हिन्दी العربية שָׁלוֹם ﷺ ｱﾞ ﾞ ർൎ 𝔘 ˈ ʰ 々 ー ㍿
"""
_SIGNS = """
    don't I'll 's 'S '' ' " (see 3.14) 1,000 U.S. e.g., -- ... a_b `` <b> http://x.yz/?q=1&r=[2] x@y.z C++ #1 1st
    ½ ² Ⅷ ٣ ७ … “quoted” ‘it’s’ — –5 €5 ´ ¨ ¸ ～ 。 、 「x」 ☃ © 🙂 🇩🇪🇫🇷 👍🏽 ##ing ▁ ▁a Ġ Ċ [UNK] </s>
"""
WORDS = [
    *_WORDS.split(),
    *("x" * 101, "ab" * 60, "e\u0301a", "\u0301", "x\u0308y", "A\u030a", "\u20dd", "\u0345", "\u0e33"),
    *("\u1112\u1161\u11ab", "\U0001e900"),
]
SIGNS = [
    *_SIGNS.split(),
    *("0" * 40, "👩\u200d👩\u200d👧", "\ufffd", "\ue000", "\u0378", "\U0010fffe"),
]
BLANKS = [
    *(" ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\r", "\r\n", "\t", "\t ", "\x0b", "\x0c", "\x1c", "\x1f", "\x85"),
    *("\u00a0", "\u1680", "\u2003", "\u2009", "\u202f", "\u3000", "\u2028", "\u2029", "\u200b", "\u200c", "\u200d"),
    *("\u2060", "\ufeff", "\u00ad", "\x00", "\x07", "\x7f", "\u061c", "\u0600"),
]


WORTH_CHARACTERS = 3_000_000
"""A process tests cuts after it has received this many characters, because the test takes time. Until then, the library
tokenizes its texts."""
SAMPLE_CHARACTERS = 100_000
"""Approximate number of characters that are tokenized by pieces and by the library, to compare the tokens."""


class QuickTokenizer:
    """Tokenizes texts with special tokens: by pieces if possible, otherwise by the library.

    Args:
        backend: a tokenizer from `adapt.model.tokenizer.load_text_tokenizer`. It must not be changed afterwards.
        words: finds the starts of words (see `adapt.model.tokenize.piece_tokenizer`). With it, the result has all
            columns of `adapt.model.tokenize.piece_tokenizer`; without it, the result only has ids.
        worth: number of characters after which the process tests which cuts are allowed.
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
        """Reason why the library tokenizes all further texts. Empty if there is no such reason."""

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
            self.refused = "this tokenizer does not allow splitting texts at spaces"
        elif not by_pieces(sample).same(by_library(self._backend, sample, self._words)):
            self.refused = "split at spaces, this text has other tokens"
        else:
            self._pieces = by_pieces
        if self.refused:
            log(f"texts are tokenized by the tokenizers library's own call, which is slower: {self.refused}")


def _is_unicode(texts: Sequence[str]) -> bool:
    """Whether all texts are valid Unicode. The library tokenizes texts with a lone surrogate."""
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
    """Number of tokens in the vocabulary."""
    unknown: int | None
    """Id of the unknown token; None if the tokenizer knows every byte."""
    end: int | None
    """Id of the end-of-text token; None if the tokenizer has none."""


def text_tokenizer(pretrained: Pretrained) -> TextTokenizer:
    """Loads the tokenizer of a model, for plain texts.

    Raises:
        ModelError: see `adapt.model.tokenizer.load_tokenizer`.
    """
    from adapt.model.tokenizer import load_text_tokenizer  # imported here, because it loads transformers

    return known_of(load_text_tokenizer(pretrained))


def known_of(loaded: "PreTrainedTokenizerFast") -> TextTokenizer:
    """Returns the `TextTokenizer` of a tokenizer from `adapt.model.tokenizer.load_text_tokenizer`."""
    knows_all = loaded.unk_token in (None, loaded.eos_token)  # such as GPT-2, with tokens for every byte
    unknown = None if knows_all else loaded.unk_token_id
    return TextTokenizer(loaded.backend_tokenizer, len(loaded), unknown, loaded.eos_token_id)


def quick_tokenizer(folder: Path) -> TextTokenizer | None:
    """Loads the tokenizer of a folder from tokenizer.json, without transformers, for a first analysis of texts.

    Returns None if the folder has no such file. Stages use `text_tokenizer`, which loads tokenizers of all forms.
    """
    file = folder / "tokenizer.json"
    try:
        model = json.loads(file.read_text(encoding="utf-8"))["model"]
        backend = Tokenizer.from_file(str(file))
    except Exception:  # the library only raises Exception; stages report such a tokenizer later
        return None
    backend.no_truncation()
    backend.no_padding()
    unknown = model.get("unk_id") if "unk_id" in model else backend.token_to_id(model.get("unk_token") or "")
    return TextTokenizer(backend, backend.get_vocab_size(), unknown, None)


def written_tokenizer(tokenizer: TextTokenizer) -> dict[str, Any] | None:
    """Serializes a tokenizer for `tokenizer_of`. Returns None if parts of it are Python code."""
    try:
        backend = tokenizer.backend.to_str()
    except Exception as error:  # the library only raises Exception
        if "Custom" not in str(error):
            raise
        return None
    return {**vars(tokenizer), "backend": backend}


def tokenizer_of(written: dict[str, Any]) -> TextTokenizer:
    """Restores a tokenizer that `written_tokenizer` has serialized."""
    backend = Tokenizer.from_str(written["backend"])
    backend.encode_special_tokens = True  # this setting is not serialized
    return TextTokenizer(**{**written, "backend": backend})
