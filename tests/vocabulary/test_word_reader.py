"""Tests that the word reader finds the words and pieces of each tokenizer family in every script."""

from collections import Counter

import pytest

from adapt.vocabulary.word_reader import WordReader, by_piece, count_chunks, count_words
from tests.tokenizers import FAMILIES, TEXTS, byte_level, unigram, wordpiece

SENTENCES = {
    "korean": "항생제는 세균 감염을 치료하는 약물이다. 세균은 내성을 얻는다.",
    "chinese": "肝炎是由病毒引起的肝脏炎症。需要及时治疗。",
    "german": "Die Arzneimittelzulassungsbehörde prüft Blutdruckmessgeräte sehr genau.",
    "chemistry": "Heating 2,4-dinitrophenylhydrazine with N-(2-chloroethyl)acetamide gave C6H12O6.",
    "code": "def read_rows(path): return [row.split(',') for row in open(path)]",
}
"""Sentences written for these tests, keyed by language or domain."""
UNCUT = ("wordless",)
"""Tokenizer families for which `by_piece` returns None, because they do not allow splitting chunks into words."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("script", SENTENCES)
def test_the_pieces_of_all_words_are_those_of_the_text(family: str, script: str) -> None:
    """The pieces of all words equal the tokens of the text.

    Special tokens such as `<s>` are left out because they are not part of words. The text is encoded with a leading
    space where the tokenizer has words that start with a space.
    """
    backend, text = FAMILIES[family](), SENTENCES[script]
    reader = WordReader(backend)
    chunks, size = count_chunks([text])
    assert size == len(text.encode())
    pieces: Counter[int] = Counter()
    for chunk, count in chunks.items():
        for word in reader.words(chunk):
            for piece in reader.pieces(word):
                pieces[piece] += count
    marks = {number for number in backend.encode(text).ids if backend.id_to_token(number) in ("<s>", "</s>")}
    # The first word of a text has no leading space, and the reader counts all words with one.
    lead = " " if family in ("byte-level", "roberta") else ""
    assert pieces == Counter(number for number in backend.encode(lead + text).ids if number not in marks)


def test_words_are_counted_by_the_tokenizers_letters() -> None:
    words = count_words({"Don't": 2, "DON": 1, "?!": 5, "zzqq": 3}, WordReader(wordpiece()))
    found = {word.word: word.count for word in words}
    assert found == {"don": 3, "t": 2, "zzqq": 3}
    assert [word.count for word in words] == sorted(found.values(), reverse=True)


def test_a_word_of_bytes_is_shown_as_readable_text() -> None:
    (word,) = count_words({"Über": 1}, WordReader(byte_level()))
    assert (word.word, word.surface) == ("ĠÃľber", "Über")


def test_parts_of_characters_are_bytes() -> None:
    reader = WordReader(byte_level())
    assert not any(piece in reader.bytes for piece in reader.pieces("Ġvalue"))
    assert all(piece in reader.bytes for piece in reader.pieces("치"))


@pytest.mark.parametrize("build", [wordpiece, unigram])
def test_unknown_words_save_one_piece_per_letter(build) -> None:  # type: ignore[no-untyped-def]
    known, unknown = count_words({"value": 2, "☃ж☃ж": 2}, WordReader(build()))
    assert (known.unknown, unknown.unknown) == (False, True)
    assert unknown.saved == 2 * (len(unknown.surface) - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_of_chunks_have_the_words_of_the_chunks(family: str) -> None:
    """Counting words by piece gives the same result as counting them chunk by chunk, also on adversarial texts."""
    reader = WordReader(FAMILIES[family]())
    chunks = {
        chunk: number for number, chunk in enumerate(sorted({*" ".join([*TEXTS, *SENTENCES.values()]).split()}), 1)
    }
    counts = by_piece(chunks, reader)
    expected = Counter[str]()
    for chunk, count in chunks.items():
        for word in reader.words(chunk):
            expected[word] += count
    assert counts is None or counts == expected
    assert (counts is None) == (family in UNCUT)
