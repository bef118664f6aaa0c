"""Tests which text of a corpus is read, and that text is split into words and pieces as the tokenizer splits it."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.files.manifest import build_manifest
from adapt.runner.digest import Digests
from adapt.support.errors import DataError
from adapt.vocabulary.word_reader import WordReader, by_piece, corpus_texts, count_chunks, count_words, measured_in
from tests.samples import is_heldout, sentences, write
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
"""Tokenizer families for which `by_piece` returns None, because chunks cannot be split into words."""


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
    # The first word of a text has no leading space, but the reader counts all words with a leading space.
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


def read(folder: Path, megabytes: float, heldout: float) -> list[str]:
    corpus = CorpusConfig(paths=str(folder), heldout_fraction=heldout)
    return list(corpus_texts(build_manifest(corpus, Digests(folder.parent / "digests")), corpus, megabytes))


def test_texts_are_not_held_out_and_have_about_the_configured_size(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    parts = [sentences(100, seed) for seed in range(3)]
    for number, texts in enumerate(parts):
        write(folder / f"{number}.jsonl", [{"text": text} for text in texts])
    every = [text for texts in parts for text in texts]
    assert sorted(read(folder, 200, 0.0)) == sorted(every)
    assert sorted(read(folder, 200, 0.3)) == sorted(text for text in every if not is_heldout(text, 0.3))
    some = read(folder, 0.006, 0.0)
    assert 6_000 <= sum(map(len, some)) < 7_000
    assert all(set(texts) & {*some} for texts in parts)


def test_too_many_broken_records_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [json.dumps({"text": text}) for text in sentences(9)]
    (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in ["broken", *lines]))
    with pytest.raises(DataError, match="1 of 10 records are unreadable: 1 malformed JSON"):
        read(folder, 200, 0.0)


def test_texts_of_evaluation_sets_and_measured_documents_are_left_out(tmp_path: Path) -> None:
    texts = sentences(40, seed=5, shortest=20)
    tested, measured, copy = texts[3], texts[8], f"{texts[3]} and then some."
    file = write(tmp_path / "texts.jsonl", [{"text": text} for text in [*texts, copy, measured.upper()]])
    questions = write(tmp_path / "questions.jsonl", [{"text": tested}])
    corpus = CorpusConfig(paths=file, heldout_fraction=0.0, decontaminate=[EvaluationSet("questions", questions)])
    general = replace(corpus, paths=write(tmp_path / "general.jsonl", [{"text": measured}]), heldout_fraction=1.0)
    digests = Digests(tmp_path / "digests")
    known = measured_in(build_manifest(general, digests), replace(general, decontaminate=[]))
    found = list(corpus_texts(build_manifest(corpus, digests), corpus, 200, measured=known))
    assert sorted(found) == sorted({*texts} - {tested, measured})


def test_no_more_of_a_corpus_is_measured_than_its_share(tmp_path: Path) -> None:
    texts = sentences(200, seed=6)
    corpus = CorpusConfig(paths=write(tmp_path / "a.jsonl", [{"text": text} for text in texts]), heldout_fraction=0.3)
    known = measured_in(build_manifest(corpus, Digests(tmp_path / "digests")), corpus)
    assert [text for text in texts if known(text)] == [text for text in texts if is_heldout(text, 0.3)]
