"""Tests how split words are counted, and which words may become tokens."""

from collections import Counter
from itertools import pairwise
from math import log
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from adapt.model.size import ModelSize
from adapt.support.errors import ConfigError, DataError
from adapt.train.capacity.flops import Workload, forward_flops
from adapt.vocabulary.analysis import (
    analyze_words,
    broken_words,
    by_divergence,
    by_saved,
    by_training,
    elbow,
    from_file,
    sizes,
)
from adapt.vocabulary.extension import build_reached, pieces_in, tokens_to_add
from adapt.vocabulary.word_reader import CountedWord, WordReader, count_chunks, count_words
from tests.tokenizers import FAMILIES, SPECIAL, byte_level, unigram, wordpiece
from tests.vocabulary.test_word_reader import SENTENCES

SIZE = ModelSize(1, 1000, 64 * 100, 2, 64, 64, 2, 128, 100, False, "gelu", False, 0.1, 6400)
WORK = Workload(16, 0.15)


def names(backend):  # type: ignore[no-untyped-def]
    return {number: piece for piece, number in backend.get_vocab().items()}


def test_figures_of_a_domain() -> None:
    backend = wordpiece()
    reader = WordReader(backend)
    texts = ["value value", "value zzqqk, zzqqk"]
    whole, broken = reader.pieces("value"), reader.pieces("zzqqk")
    assert len(whole) == 1 < len(broken)
    found = analyze_words(texts, reader, names(backend), 2, SIZE, WORK)
    assert found
    assert (found.words, found.distinct, found.pieces) == (5, 2, 3 + 2 * len(broken))
    assert found.bytes == sum(map(len, texts))
    assert found.fertility == pytest.approx((3 + 2 * len(broken)) / 5)
    assert found.fragment_score == pytest.approx((1 + len(broken)) / 2)
    assert (found.broken_share, found.unknown_share, found.byte_share) == (2 / 5, 0, 0)
    assert (found.candidates, found.elbow, found.length_overhead) == (1, 1, None)
    assert [each.word for each in found.worst] == ["zzqqk"]
    none, one = found.curve
    assert (none.tokens, none.length_saved, none.compute_saved) == (0, 0, 0)
    assert one.fertility == 1
    assert one.length_saved == pytest.approx(1 - 5 / found.pieces)
    # A new token adds 64 weights to the output head, with two FLOPs per weight. The head runs on 15% of all tokens.
    before, after = forward_flops(SIZE, WORK), forward_flops(SIZE, WORK) + 2 * 64 * 0.15
    assert one.compute_saved == pytest.approx(1 - 5 * after / (found.pieces * before))


def test_text_is_longer_than_general_text_by_pieces_a_byte() -> None:
    backend = wordpiece()
    reader = WordReader(backend)
    general = analyze_words(["value value"], reader, names(backend), 1)
    domain = analyze_words(["zzqqk zzqqk"], reader, names(backend), 1, general=general)
    assert domain
    pieces = 2 * len(reader.pieces("zzqqk"))
    assert domain.length_overhead == pytest.approx((pieces / 11) / (2 / 11) - 1)


def test_characters_that_are_broken_into_bytes_are_counted() -> None:
    backend = byte_level()
    found = analyze_words(["치료 치료"], WordReader(backend), names(backend), 1)
    assert found
    assert found.byte_share > 0.5
    assert found.unknown_share == 0


def test_texts_without_words_have_no_figures() -> None:
    assert analyze_words(["", "?! ..."], WordReader(wordpiece()), {}, 1) is None


def test_words_that_save_most_come_first_and_rare_ones_are_left_out() -> None:
    words = count_words({"zzqqk": 3, "zq": 9, "qqqqqqqq": 1, "value": 50}, WordReader(wordpiece()))
    assert [word.word for word in broken_words(words, 2)] == ["zzqqk", "zq"]


@pytest.mark.parametrize(
    ("saved", "best"), [([], 0), ([5], 1), ([10, 10, 10], 1), ([100, 50, 2, 1, 1], 2), ([9, 8, 7, 1, 1, 1], 3)]
)
def test_the_elbow_is_where_a_further_token_saves_less_than_the_mean(saved: list[int], best: int) -> None:
    assert elbow(saved) == best
    if saved and len(set(saved)) > 1:
        assert saved[best - 1] >= sum(saved) / len(saved) > saved[best]


def test_the_numbers_of_a_curve() -> None:
    assert sizes(0) == [0]
    assert sizes(60) == [0, 10, 20, 50, 60]


CHUNKS = {"hepatitis": 30, "hepatic": 10, "nephritis": 20, "value": 50, "3.14": 9, "hepatitis,": 7, "rare-word": 1}


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_words_are_ordered_by_savings(family: str) -> None:
    reader = WordReader(FAMILIES[family]())
    found = by_saved(count_words(CHUNKS, reader), reader, 5)
    saved = [word.saved for word in found]
    assert saved == sorted(saved, reverse=True)
    assert {"hepatitis", "hepatic", "nephritis"} <= {word.surface for word in found}
    assert all(word.surface.isalnum() and word.count >= 5 for word in found)


def test_beginnings_of_words_by_divergence_against_the_formula() -> None:
    reader = WordReader(byte_level())
    words, general = count_words({"zab": 8, "zac": 2}, reader), count_words({"zab": 1, "zac": 9}, reader)
    assert [len(word.pieces) for word in words] == [4, 4] or len(words[0].pieces) > 1
    found = by_divergence(words, general, reader, 1)
    last = words[0].pieces
    score = {word.pieces: word for word in found}
    ours, theirs, size = 8 / 10, (1 + 1) / (10 + reader.size), reader.size
    assert last in score
    assert found[-1].pieces != last or ours * log(ours / theirs) > 0
    # Of 10 words with "za", 2 continue as "zac" in the domain, and 9 in general text. Smoothing lowers the share in
    # general text, but "zac" still scores below "zab".
    assert (2 / 10) * log((2 / 10) / ((9 + 1) / (10 + size))) < ours * log(ours / theirs)
    assert found.index(score[last]) < [word.pieces for word in found].index(words[1].pieces)


@pytest.mark.parametrize("family", ["wordpiece", "byte-level", "unigram"])
def test_pieces_of_a_tokenizer_of_the_domain_are_reached(family: str) -> None:
    backend = FAMILIES[family]()
    reader = WordReader(backend)
    texts = [
        f"chronic {word} of the liver" for word in ("hepatitis", "hepatic", "nephritis", "arthritis") for _ in "123456"
    ]
    words = count_words(
        {chunk: text.split().count(chunk) for text in [" ".join(texts)] for chunk in {*text.split()}}, reader
    )

    fast = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", mask_token="<mask>")
    trained = fast.train_new_from_iterator(texts * 3, 320, show_progress=False).backend_tokenizer
    found = by_training(words, trained, reader, 5)
    assert found
    assert not any(reader.knows(word.word) for word in found)
    reached = build_reached(backend, found, words)
    after = WordReader(reached.rebuilt.backend)
    seen = {piece for word in words for piece in after.pieces(word.word)}
    assert {reached.rebuilt.added[word.word] for word in reached.chosen} <= seen
    assert pieces_in(words, after) < pieces_in(words, reader)


def test_a_candidate_that_no_word_uses_is_left_out() -> None:
    reader = WordReader(wordpiece())
    words = count_words({"hepatitis": 5}, reader)
    (whole,) = by_saved(words, reader, 1)
    never = CountedWord("##zzq", "zzq", 3, reader.parts("##zzq"), False)
    reached = build_reached(wordpiece(), [never, whole], words)
    assert ([word.word for word in reached.chosen], reached.unreached) == (["hepatitis"], [never])
    assert list(reached.rebuilt.added) == ["hepatitis"]


def test_unused_candidates_are_left_out_until_all_tokens_are_used() -> None:
    """Each left-out candidate had merges without which the next candidate does not occur in a word any more."""
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate("abcdefghijklmno")}, []))
    reader = WordReader(backend)
    chain = ["abc", "def", "ghi", "jkl", "mno"]
    crossing = [left[1] + right[0] for left, right in pairwise(chain)]  # reached as a word of its own
    spelled = [*crossing, *(left[:2] + right for left, right in pairwise(chain))]
    order = ["abc", *(each for pair in zip(crossing, chain[1:], strict=True) for each in pair)]
    words, candidates = (
        [CountedWord(word, word, 1, reader.pieces(word), False) for word in some] for some in (spelled, order)
    )
    reached = build_reached(backend, candidates, words)
    assert [word.word for word in reached.chosen] == crossing
    assert [word.word for word in reached.unreached] == chain


def test_the_number_of_words_that_become_tokens() -> None:
    words = by_saved(count_words(CHUNKS, WordReader(wordpiece())), WordReader(wordpiece()), 1)
    assert tokens_to_add(None, words, 30_522) == 305
    assert tokens_to_add(7, words, 100) == 7
    assert tokens_to_add("elbow", words, 100) == elbow([word.saved for word in words])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("value", "line 2: 'value' is a token already"),
        ("a<mask>b", "contains the special token <mask>"),
        ("two words", "is 2 words for this tokenizer: two words"),
        ("Hyphen-ated", "is 3 words"),
        ("☃ж☃", "does not know"),
    ],
)
def test_lines_that_cannot_become_tokens(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "words.txt"
    file.write_text(f"hepatitis\n{line}\n")
    with pytest.raises(DataError, match=message):
        from_file(file, [], WordReader(wordpiece()), SPECIAL)


@pytest.mark.parametrize("build", [wordpiece, byte_level, unigram])
def test_words_of_a_file(tmp_path: Path, build) -> None:  # type: ignore[no-untyped-def]
    backend: Tokenizer = build()
    reader, file = WordReader(backend), tmp_path / "words.txt"
    file.write_text("nephritis\n\nhepatitis\nnephritis\n")
    found = from_file(file, count_words(CHUNKS, reader), reader, SPECIAL)
    assert [word.surface for word in found] == ["nephritis", "hepatitis"]
    assert found[0].count == 20
    assert build_reached(backend, found, found).unreached == []
    file.write_text("\n")
    with pytest.raises(DataError, match="has no words"):
        from_file(file, [], reader, SPECIAL)
    with pytest.raises(ConfigError, match="cannot be read"):
        from_file(tmp_path / "none.txt", [], reader, SPECIAL)


KOREAN = "만성 간염 환자는 항바이러스제를 복용한다. 간염 환자는 정기적으로 검사를 받는다."
CHINESE = "慢性肝炎患者需要抗病毒治疗。肝炎患者应当定期检查。"
GERMAN = "Die Blutdruckmessung zeigt, dass Blutdruckmessgeräte für Herzkreislauferkrankungen taugen."
CHEMISTRY = "The dinitrophenylhydrazine test finds a ketone; dinitrophenylhydrazine gives an orange solid (C6H12O6)."
CODE = "def load_rows(path):\n    rows = read_lines(path)\n    return [parse_row(row) for row in rows]"
TEXTS = {"korean": KOREAN, "chinese": CHINESE, "german": GERMAN, "chemistry": CHEMISTRY, "code": CODE}
"""Texts written for these tests, keyed by script or domain."""
BUILT = {"wordpiece": wordpiece, "byte-level": byte_level, "unigram": unigram}


def counted(text: str, backend: Tokenizer, times: int = 6) -> tuple[WordReader, list[CountedWord]]:
    reader = WordReader(backend)
    return reader, count_words(count_chunks([text] * times)[0], reader)


@pytest.mark.parametrize(
    ("script", "family", "words"),
    [
        ("korean", "byte-level", {"환자는", "간염", "항바이러스제를"}),
        # Chinese has no spaces, so each run of characters between punctuation marks is a word.
        ("chinese", "byte-level", {"慢性肝炎患者需要抗病毒治疗", "肝炎患者应当定期检查"}),
        ("german", "wordpiece", {"blutdruckmessung", "herzkreislauferkrankungen"}),
        ("german", "byte-level", {"Blutdruckmessung", "Blutdruckmessgeräte", "für"}),
        ("german", "unigram", {"Blutdruckmessung", "Herzkreislauferkrankungen"}),
        ("chemistry", "wordpiece", {"dinitrophenylhydrazine", "c6h12o6"}),
        ("chemistry", "byte-level", {"dinitrophenylhydrazine"}),
        # WordPiece splits words at underscores.
        ("code", "wordpiece", {"rows", "parse", "lines"}),
        ("code", "byte-level", {"rows", "path"}),
    ],
)
def test_words_are_those_of_the_tokenizer(script: str, family: str, words: set[str]) -> None:
    _, found = counted(TEXTS[script], BUILT[family]())
    assert words <= {word.surface for word in found}


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("family", BUILT)
def test_whole_words_become_tokens_and_come_back_as_text(script: str, family: str) -> None:
    backend = BUILT[family]()
    reader, words = counted(TEXTS[script], backend)
    candidates = by_saved(words, reader, 5)
    if not candidates:
        # Only tokenizers that are not byte-level may have no candidates, if they do not know the letters of a script.
        assert family != "byte-level"
        assert all(word.unknown or len(word.pieces) == 1 or not word.surface.isalnum() for word in words)
        return
    reached = build_reached(backend, candidates, words)
    after = WordReader(reached.rebuilt.backend)
    assert all(len(after.pieces(word.word)) == 1 for word in reached.chosen)
    assert pieces_in(words, after) < pieces_in(words, reader)
    text = TEXTS[script]
    assert reached.rebuilt.backend.decode(reached.rebuilt.backend.encode(text).ids) == backend.decode(
        backend.encode(text).ids
    )
    assert not {*reached.rebuilt.added} & {*backend.get_vocab()}


@pytest.mark.parametrize("script", ["chinese", "korean"])
def test_parts_of_runs_become_tokens_of_bytes(script: str) -> None:
    """Parts of words become tokens if whole words are too long to be repeated in the text.

    Chinese and Korean words are long runs of characters. A tokenizer trained on the domain finds their frequent parts.
    """
    backend, text = byte_level(), TEXTS[script]
    reader, words = counted(text, backend)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", mask_token="<mask>")
    trained = fast.train_new_from_iterator([text] * 6, 320, show_progress=False).backend_tokenizer
    reached = build_reached(backend, by_training(words, trained, reader, 5), words)
    found = Counter(len(word.surface) for word in reached.chosen)
    assert found
    assert all(word.surface in text for word in reached.chosen)
    assert pieces_in(words, WordReader(reached.rebuilt.backend)) < 0.8 * pieces_in(words, reader)


def test_an_english_word_is_not_a_token_because_of_other_scripts() -> None:
    backend = byte_level()
    reader, words = counted(KOREAN, backend)
    rebuilt = build_reached(backend, by_saved(words, reader, 5), words).rebuilt.backend
    for text in (SENTENCES["german"], SENTENCES["code"]):
        assert rebuilt.encode(text).ids == backend.encode(text).ids
