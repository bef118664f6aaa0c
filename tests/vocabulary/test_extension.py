"""Tests tokenizers that are rebuilt with added words.

Old tokens keep their ids, new tokens are produced, texts without new words give the same tokens, and decoding works.
"""

import json
from math import log

import pytest
from tokenizers import Tokenizer, models

from adapt.support.errors import ModelError
from adapt.vocabulary.extension import MARGIN, Rebuilt, best_path, check_ids, new_merges, new_scores, rebuild
from adapt.vocabulary.word_reader import WordReader
from tests.tokenizers import FAMILIES, TEXTS, byte_level
from tests.vocabulary.test_word_reader import SENTENCES

WORDS = ["hepatitis", "hepatic", "Arzneimittelzulassungsbehörde", "dinitrophenylhydrazine", "치료하는", "read"]
NEW = "chronic hepatitis and hepatic failure; 세균 감염을 치료하는 dinitrophenylhydrazine (read)"


def extended(backend: Tokenizer, words: list[str] = WORDS) -> tuple[Rebuilt, list[str]]:
    """Rebuilds a tokenizer with new tokens and returns it with the added words.

    A word is only added if the tokenizer splits it into several known pieces. The returned words are in the tokenizer's
    spelling.
    """
    reader = WordReader(backend)
    asked = {}
    for surface in words:
        (word,) = reader.words(surface)
        pieces = reader.pieces(word)
        if len(pieces) > 1 and reader.unknown not in pieces:
            asked[word] = [backend.id_to_token(piece) for piece in pieces]
    assert asked
    return rebuild(backend, asked), list(asked)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_new_token_is_used(family: str) -> None:
    rebuilt, asked = extended(FAMILIES[family]())
    assert rebuilt.left_out == []
    reader = WordReader(rebuilt.backend)
    assert {word: reader.pieces(word) for word in asked} == {word: (rebuilt.added[word],) for word in asked}
    assert {rebuilt.added[word] for word in asked} & {*rebuilt.backend.encode(NEW).ids}


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_keep_their_meaning_and_new_ones_follow(family: str) -> None:
    backend = FAMILIES[family]()
    rebuilt, _ = extended(backend)
    old, new = backend.get_vocab(), rebuilt.backend.get_vocab()
    assert {token: new[token] for token in old} == old
    assert sorted(new.items() - old.items()) == sorted(rebuilt.added.items())
    assert sorted(rebuilt.added.values()) == list(
        range(max(old.values()) + 1, max(old.values()) + 1 + len(rebuilt.added))
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_without_a_new_token_have_the_same_tokens_as_before(family: str) -> None:
    backend = FAMILIES[family]()
    rebuilt, _ = extended(backend)
    texts = [*TEXTS[:150], *TEXTS[-100:], *SENTENCES.values()]
    new, same = {*rebuilt.added.values()}, 0
    for before, after in zip(backend.encode_batch(texts), rebuilt.backend.encode_batch(texts), strict=True):
        if not new & {*after.ids}:
            assert after.ids == before.ids
            same += 1
    assert same > 200


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_come_back_as_they_did_before(family: str) -> None:
    backend = FAMILIES[family]()
    rebuilt, _ = extended(backend)
    for text in (NEW, *SENTENCES.values(), *TEXTS[:20]):
        assert rebuilt.backend.decode(rebuilt.backend.encode(text).ids) == backend.decode(backend.encode(text).ids)


def test_words_with_the_same_beginning_share_merges() -> None:
    rebuilt, asked = extended(byte_level(), ["hepatitis", "hepatic"])
    assert rebuilt.steps == {*rebuilt.added} - {*asked}
    merges, left_out = new_merges([["hep", "at", "itis"], ["hep", "at", "ic"]], {"hep"})
    assert merges == [("hep", "at"), ("hepat", "itis"), ("hepat", "ic")]
    assert left_out == []
    assert new_merges([["a", "b", "c"], ["b", "c"]], {"ab"}) == ([("b", "c")], ["abc"])


def test_the_score_of_a_piece_is_just_above_its_best_path() -> None:
    scores = {"a": log(0.5), "b": log(0.2), "ab": log(0.3)}
    assert best_path("aab", scores, -99) == pytest.approx(log(0.5) + log(0.3))
    assert best_path("axb", scores, -99) == pytest.approx(log(0.5) - 99 + log(0.2))
    found = new_scores(scores, ["aabb", "aab"])
    assert found["aab"] == pytest.approx(log(0.15) + MARGIN)
    # The best other path of "aabb" goes through the new token "aab", so its score must exceed that path's by a margin.
    assert found["aabb"] == pytest.approx(log(0.15) + MARGIN + log(0.2) + MARGIN)


def test_a_split_word_that_is_a_unigram_token_already_is_left_out() -> None:
    scores = {"<unk>": 0.0, "\u2581hepat": -3.0, "itis": -3.0, "ic": -4.0, "\u2581hepatitis": -20.0}
    backend = Tokenizer(models.Unigram(list(scores.items()), 0))
    rebuilt = rebuild(backend, {"\u2581hepatitis": ["\u2581hepat", "itis"], "\u2581hepatic": ["\u2581hepat", "ic"]})
    assert (rebuilt.added, rebuilt.left_out) == ({"\u2581hepatic": 5}, ["\u2581hepatitis"])
    assert rebuilt.backend.encode("\u2581hepatitis").tokens == ["\u2581hepat", "itis"]


def test_a_tokenizer_of_whole_words_cannot_be_extended() -> None:
    with pytest.raises(ModelError, match="of type WordLevel cannot be extended"):
        rebuild(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), {"b": ["a"]})


def test_merges_are_written_as_they_were() -> None:
    """Tokenizer files store merges as pairs, or as strings with a space between the parts. Both forms are tested."""
    whole = json.loads(byte_level().to_str())
    whole["model"]["merges"] = [" ".join(merge) for merge in whole["model"]["merges"]]
    rebuilt, asked = extended(Tokenizer.from_str(json.dumps(whole)))
    assert WordReader(rebuilt.backend).pieces(asked[0]) == (rebuilt.added[asked[0]],)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"a": 0, "b": 2}, "the id of 'b' would be 2 instead of 1"),
        ({"a": 0}, "the id of 'b' would be missing instead of 1"),
        ({"a": 0, "b": 1, "c": 2}, "it would have 3 tokens instead of 2"),
    ],
)
def test_a_rebuilt_tokenizer_with_other_ids_is_refused(found: dict[str, int], said: str) -> None:
    check_ids({"a": 0}, {"b": 1}, {"a": 0, "b": 1})
    with pytest.raises(ModelError, match=said):
        check_ids({"a": 0}, {"b": 1}, found)
