"""What a model reads of an example, whatever its tokenizer's family."""

from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, GPT2TokenizerFast, PreTrainedTokenizerFast

from adapt.task.data import IGNORED
from adapt.task.encode import encode
from adapt.task.read import Example
from tests import tokenizers

CLASSES = ["B-X", "I-X", "O"]
NER = [
    (["The", "model", "naïve", "café", ",", "don't"], ["O", "B-X", "I-X", "I-X", "O", "B-X"]),
    (["stop-gradient", "two words", "(see"], ["B-X", "I-X", "O"]),
    (["data"], ["B-X"]),
]


@pytest.fixture(scope="module")
def bert(tiny_bert: Any) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(tiny_bert)


@pytest.fixture(scope="module")
def gpt2() -> PreTrainedTokenizerFast:
    """Without special tokens around a text."""
    model = tokenizers.json.loads(tokenizers.byte_level().to_str())["model"]
    return GPT2TokenizerFast(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def text(of: str, label: str | int = "no", pair: str | None = None) -> Example:
    return Example("x, line 1", "0", of, pair, (), (label,))


def words(those: list[str], labels: list[str]) -> Example:
    return Example("x, line 1", "0", " ".join(those), None, tuple(those), tuple(labels))


def test_texts_as_the_tokenizer_has_them(bert: PreTrainedTokenizerFast) -> None:
    long = "data model " * 200  # longer than the model
    found = encode([text("a layer"), text(long, "yes"), text("")], "single_label", ["no", "yes"], bert)
    expected = [bert(each, add_special_tokens=True)["input_ids"] for each in ("a layer", long, "")]
    assert [each.tolist() for each in found.tokens] == expected
    assert [len(each) for each in found.tokens] == [4, 402, 2]
    assert found.labels == [0, 1, 0]
    assert {each.dtype for each in found.tokens} == {np.dtype(np.int32)}
    assert {each.dtype for each in found.segments} == {np.dtype(np.int8)}
    assert not any(each.any() for each in found.segments)


def test_pairs_are_joined_and_told_apart(bert: PreTrainedTokenizerFast) -> None:
    found = encode([text("a layer", pair="data set")], "single_label", ["no"], bert)
    assert bert.convert_ids_to_tokens(found.tokens[0].tolist())[:4] == ["[CLS]", "a", "layer", "[SEP]"]
    assert found.tokens[0].tolist() == bert("a layer", "data set")["input_ids"]
    assert found.segments[0].tolist() == bert("a layer", "data set")["token_type_ids"]
    assert 1 in found.segments[0]


def test_many_labels_and_integers(bert: PreTrainedTokenizerFast) -> None:
    several = Example("x, line 1", "0", "data", None, (), (2, 10))
    nothing = Example("x, line 2", "1", "data", None, (), ())
    assert encode([several, nothing], "multi_label", ["1", "2", "10"], bert).labels == [[1, 2], []]
    assert encode([text("data", 10)], "single_label", ["1", "2", "10"], bert).labels == [2]


def test_batches_join_in_order(bert: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [text("model " * n) for n in range(1, 8)]
    whole = encode(examples, "single_label", ["no"], bert)
    monkeypatch.setattr("adapt.task.encode._BATCH", 3)
    parts = encode(examples, "single_label", ["no"], bert)
    assert [each.tolist() for each in parts.tokens] == [each.tolist() for each in whole.tokens]
    assert encode([], "single_label", ["no"], bert).tokens == []


def test_without_special_tokens(gpt2: PreTrainedTokenizerFast) -> None:
    found = encode([text("the data"), text("")], "single_label", ["no"], gpt2)
    assert found.tokens[0].tolist() == gpt2("the data")["input_ids"]
    assert found.tokens[1].tolist() == [gpt2.eos_token_id]  # an empty text still passes the model
    assert found.segments[1].tolist() == [0]
    pair = encode([text("the", pair="data")], "single_label", ["no"], gpt2)
    assert not pair.segments[0].any()  # the model has no segments, and would take them for words
    nothing = encode([words([], [])], "tokens", CLASSES, gpt2)
    assert (nothing.tokens[0].tolist(), nothing.labels) == ([gpt2.eos_token_id], [[IGNORED]])


def test_words_in_a_wordpiece_tokenizer_are_those_of_its_own_splitting(bert: PreTrainedTokenizerFast) -> None:
    found = encode([words(*each) for each in NER], "tokens", CLASSES, bert)
    plain = bert([each for each, _ in NER], is_split_into_words=True)
    for number, (_, labels) in enumerate(NER):
        numbers = plain.word_ids(number)
        expected = [
            IGNORED if word is None or word in numbers[:place] else CLASSES.index(labels[word])
            for place, word in enumerate(numbers)
        ]
        assert found.tokens[number].tolist() == plain["input_ids"][number]
        assert found.labels[number] == expected


@pytest.mark.parametrize("family", tokenizers.FAMILIES)
def test_words_of_running_text_in_every_family(family: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.FAMILIES[family]())
    found = encode([words(*each) for each in NER], "tokens", CLASSES, tokenizer)
    assert found.vanished_words == 0
    for number, (those, labels) in enumerate(NER):
        assert found.tokens[number].tolist() == tokenizer(" ".join(those))["input_ids"]
        assert len(found.labels[number]) == len(found.tokens[number])
        assert [CLASSES[label] for label in found.labels[number] if label != IGNORED] == labels


def test_the_blank_before_a_word_stays(gpt2: PreTrainedTokenizerFast) -> None:
    found = encode([words(["the", "data"], ["O", "B-X"])], "tokens", CLASSES, gpt2)
    tokens = gpt2.convert_ids_to_tokens(found.tokens[0].tolist())
    first = [token for token, label in zip(tokens, found.labels[0], strict=True) if label == 0]
    assert first == ["Ġdata"]


def test_words_without_a_token_are_counted(bert: PreTrainedTokenizerFast) -> None:
    found = encode([words(["the", "\x07", "", "data"], ["O", "B-X", "O", "I-X"])], "tokens", CLASSES, bert)
    assert found.vanished_words == 2
    assert [label for label in found.labels[0] if label != IGNORED] == [2, 1]
