"""Tests that tokenizing by pieces gives the library's tokens.

If pieces give other tokens, the tokenizer must use the library's own call, and a log line must say so.
"""

from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import AddedToken, Encoding, Regex, Tokenizer, normalizers, pre_tokenizers

from adapt.corpus.encode_chunks import Marker
from adapt.model.tokenize.piece_tokenizer import BEGINS, ENDS, IDS, SPECIAL, WORDS
from adapt.model.tokenize.text_tokenizer import QuickTokenizer
from tests.model.tokenize.adversaries import adversaries
from tests.samples import sentences
from tests.tokenizers import FAMILIES, wordpiece

pytestmark = pytest.mark.heavy

CUT = [family for family in FAMILIES if family != "wordless"]
TEXTS = [*sentences(50, seed=1), *adversaries(600, seed=1), "", " ", "\n", "a", "x" * 5000]


def literal(family: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(FAMILIES[family]().to_str())
    tokenizer.encode_special_tokens = True
    return tokenizer


def ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def quick_ids(quick: QuickTokenizer, texts: list[str]) -> list[list[int]]:
    return [each.tolist() for each in quick(texts).lists(IDS)]


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_equal_the_librarys(family: str) -> None:
    tokenizer = literal(family)
    quick = QuickTokenizer(tokenizer, worth=0)
    for texts in (TEXTS, TEXTS[::-1], adversaries(300, seed=2), TEXTS[:1], [""], []):
        assert quick_ids(quick, texts) == ids(tokenizer, texts)
    assert bool(quick.refused) is (family == "wordless")


@pytest.mark.parametrize("family", CUT)
def test_words_and_offsets_equal_the_librarys(family: str) -> None:
    tokenizer = literal(family)
    words = Marker(tokenizer).word_starts
    quick = QuickTokenizer(tokenizer, words, worth=0)
    found = quick(TEXTS)
    assert not quick.refused
    expected: dict[str, Callable[[str, Encoding], object]] = {
        IDS: lambda _, encoding: encoding.ids,
        WORDS: lambda text, encoding: words(text, encoding).tolist(),
        BEGINS: lambda _, encoding: [begin for begin, _ in encoding.offsets],
        ENDS: lambda _, encoding: [end for _, end in encoding.offsets],
        SPECIAL: lambda _, encoding: [bool(each) for each in encoding.special_tokens_mask],
    }
    encodings = tokenizer.encode_batch(TEXTS)
    for name, value in expected.items():
        assert [each.tolist() for each in found.lists(name)] == [
            value(*each) for each in zip(TEXTS, encodings, strict=True)
        ]


def spoilt(change: str) -> Tokenizer:
    tokenizer = literal("wordpiece")
    if change == "normalizer":
        rest = [normalizers.Replace("gradient of", "gradientof"), tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence(rest)
    elif change == "added":
        tokenizer.add_tokens(["loss of data"])
    elif change == "greedy":
        tokenizer.add_tokens([AddedToken("loss", rstrip=True), AddedToken("the data", lstrip=True)])
    elif change == "no split":
        tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    elif change == "truncation":
        tokenizer.enable_truncation(6)
    elif change == "padding":
        tokenizer.enable_padding(length=9)
    return tokenizer


@pytest.mark.parametrize("change", ["normalizer", "added", "greedy", "no split", "truncation", "padding"])
def test_a_tokenizer_that_does_not_split_at_blanks_uses_the_library(
    change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer, texts = spoilt(change), [*TEXTS, "the loss of data and the gradient of data"] * 2
    quick = QuickTokenizer(tokenizer, worth=0)
    assert quick_ids(quick, texts) == ids(tokenizer, texts)
    assert quick.refused
    assert quick_ids(quick, texts) == ids(tokenizer, texts)
    assert capsys.readouterr().err.count("library's own call") == 1


def test_differences_in_the_users_texts_are_detected() -> None:
    tokenizer = literal("wordpiece")
    strange = normalizers.Replace(Regex("(?<=laye)r (?=toke)"), "")
    tokenizer.normalizer = normalizers.Sequence([strange, tokenizer.normalizer])
    texts = ["a layer token of data"] * 30
    quick = QuickTokenizer(tokenizer, worth=0)
    assert quick_ids(quick, texts) == ids(tokenizer, texts)
    assert "other tokens" in quick.refused


def test_special_tokens_in_a_text_are_recognized_by_pieces_too() -> None:
    tokenizer = Tokenizer.from_str(wordpiece().to_str())
    quick = QuickTokenizer(tokenizer, worth=0)
    texts = ["a <mask> here", "x<mask>y <s></s>", "<mask>"] * 20
    assert quick_ids(quick, texts) == ids(tokenizer, texts)


def test_short_texts_are_tokenized_by_the_library() -> None:
    tokenizer = literal("byte-level")
    quick = QuickTokenizer(tokenizer, worth=100)
    quick(["a few words"])
    assert quick._pieces is None
    quick(["a few words of text, " * 10])
    assert quick._pieces
    assert not quick.refused


def test_half_a_surrogate_pair_raises_the_librarys_error() -> None:
    tokenizer = literal("wordpiece")
    quick = QuickTokenizer(tokenizer, worth=0)
    quick(TEXTS)
    with pytest.raises(Exception) as expected:  # noqa: PT011 - the library's own error type
        tokenizer.encode_batch(["a \ud800 b"])
    with pytest.raises(expected.type):
        quick(["a \ud800 b"])


def test_a_tokenizer_without_special_tokens_allows_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = literal("byte-level")
    tokenizer.post_processor = None  # GPT-2's tokenizer adds no special tokens either
    quick = QuickTokenizer(tokenizer, worth=0)
    assert quick_ids(quick, TEXTS) == ids(tokenizer, TEXTS)
    assert not capsys.readouterr().err


def test_columns_have_their_types() -> None:
    tokenizer = literal("roberta")
    found = QuickTokenizer(tokenizer, Marker(tokenizer).word_starts, worth=0)(TEXTS)
    kinds = [found.columns[name].dtype for name in (IDS, WORDS, BEGINS, ENDS, SPECIAL)]
    assert kinds == [np.uint32, bool, np.int64, np.int64, bool]
