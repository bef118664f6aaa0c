"""Tests the preparation of a task, from its files to the files that fine-tuning reads."""

import json
import random
import re
import unicodedata
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, GPT2TokenizerFast, PreTrainedTokenizerFast

from adapt.model.locate import Pretrained
from adapt.support.errors import AdaptError, ConfigError, DataError
from adapt.task.labelled_examples import Example
from adapt.task.prepare_task import (
    IGNORED,
    SPLITS,
    Facts,
    Split,
    check_task,
    encode,
    find_leaks,
    find_repeats,
    prepare_task,
)
from tests import tokenizers
from tests.objective.rows import wrapped
from tests.samples import sentences
from tests.task.tasks import GOOD, WORDS, with_train, write
from tests.tokenizers import FAMILIES


@pytest.fixture
def pretrained(tiny_bert: Path) -> Pretrained:
    return Pretrained(tiny_bert, tiny_bert)


def test_prepared(tmp_path: Path, pretrained: Pretrained) -> None:
    train = with_train(
        {"text": "", "label": "yes"},
        {"text": "A Model", "label": "no"},
        {"text": "a model", "label": "yes"},
        {"text": "large", "label": "rare"},
    )
    test = [*GOOD["test"], {"text": "a  MODEL", "label": "maybe"}, {"text": "", "label": "no"}]
    task = write(tmp_path, settings={"name": "toy", "metric": "micro_f1"}, train=train, test=test)
    found = prepare_task(task, pretrained, tmp_path)
    assert json.loads(json.dumps(asdict(found))) == {
        "examples": {"train": 5, "dev": 2, "test": 4},
        "tokens": {
            "train": {"mean": (4 + 4 + 4 + 4 + 3) / 5, "longest": 4},
            "dev": {"mean": 4.0, "longest": 4},
            "test": {"mean": (4 + 4 + 4 + 2) / 4, "longest": 4},
        },
        "empty_texts": {"train": 1, "dev": 0, "test": 1},
        "unusable": {"train": {}, "dev": {}, "test": {}},
        "vanished_words": {"train": 0, "dev": 0, "test": 0},
        "labels": {
            "maybe": {"train": 0, "dev": 0, "test": 1},
            "no": {"train": 2, "dev": 1, "test": 2},
            "rare": {"train": 1, "dev": 0, "test": 0},
            "yes": {"train": 2, "dev": 1, "test": 1},
        },
        "unseen_classes": ["maybe"],
        "absent_classes": {"dev": ["rare"], "test": ["rare"]},
        "duplicates": 1,
        "conflicting": 3,
        "leaks": {"dev_in_train": 0, "test_in_train": 1, "test_in_train_same_label": 0, "test_in_dev": 0},
        "label_warnings": [
            "1 of 4 examples of test have the label 'maybe', which train never has (the first is"
            f" {tmp_path}/test.jsonl, line 3)"
        ],
        "text_faults": [],
    }
    assert Facts.load(tmp_path) == Facts("toy", "single_label", ["maybe", "no", "rare", "yes"], "micro_f1")
    splits = {split: Split.load(tmp_path, split) for split in SPLITS}
    assert splits["train"].ids == ["0", "1", "3", "4", "5"]
    assert splits["train"].labels == [3, 1, 1, 3, 2]
    assert splits["test"].labels == [1, 3, 0, 1]
    assert splits["test"].leaked == [False, False, True, False]
    assert splits["test"].tokens[2].tolist() == splits["train"].tokens[0].tolist()


@pytest.mark.parametrize(
    ("examples", "settings", "labels"),
    [
        (WORDS, {"kind": "tokens"}, [[-100, 2, 0, 1, -100]]),
        (
            {split: [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}] for split in SPLITS},
            {"kind": "multi_label"},
            [[0, 1], []],
        ),
    ],
)
def test_other_kinds_are_read_back(
    tmp_path: Path, pretrained: Pretrained, examples: dict[str, list[Any]], settings: dict[str, Any], labels: list[Any]
) -> None:
    prepare_task(write(tmp_path, examples, settings), pretrained, tmp_path)
    assert Split.load(tmp_path, "train").labels == labels


def test_a_second_run_replaces_the_files_of_a_killed_one(tmp_path: Path, pretrained: Pretrained) -> None:
    task = write(tmp_path)
    (tmp_path / "train.arrow").write_bytes(b"half a file")
    (tmp_path / "task.json").write_text("{")
    found = prepare_task(task, pretrained, tmp_path)
    assert prepare_task(task, pretrained, tmp_path) == found
    assert len(Split.load(tmp_path, "train")) == 2


def test_check_accepts_good_tasks(tmp_path: Path) -> None:
    check_task(write(tmp_path))
    check_task(write(tmp_path, WORDS, {"kind": "tokens"}))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, list[Any]], type[AdaptError], str]] = {
    "no file named": ({"dev": []}, {}, ConfigError, r"task\.dev is empty"),
    "no such file": ({"test": "/absent/test.jsonl"}, {}, DataError, r"task\.test: /absent/test\.jsonl matches no file"),
    "no such field": ({"text_field": "txt"}, {}, DataError, r"train\.jsonl, line 1 has no field 'txt'"),
    "test without labels": ({}, {"test": [{"text": "a"}]}, DataError, r"test\.jsonl, line 1 has no field 'label'"),
    "empty split": ({}, {"dev": []}, DataError, r"task\.dev holds no usable example$"),
    "nothing usable": (
        {},
        {"dev": ["broken", "["]},
        DataError,
        r"dev\.jsonl has no readable record; the first of 2 is unreadable: malformed JSON",
    ),
    "words in pairs": ({"kind": "tokens", "pair_field": "label"}, {}, ConfigError, r"task\.pair_field is set"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_check_refuses(tmp_path: Path, fault: str) -> None:
    settings, splits, kind, what = REFUSED[fault]
    task = write(tmp_path, settings=settings, **splits)
    with pytest.raises(kind) as caught:
        check_task(task)
    assert re.search(what, caught.value.what)
    assert caught.value.fix


def test_special_tokens_written_in_an_example_are_text(tmp_path: Path, pretrained: Pretrained) -> None:
    train = with_train({"text": "a [MASK] model [SEP]", "pair": "the [SEP] data", "label": "no"})
    good = {split: [{"pair": "the", **record} for record in records] for split, records in GOOD.items()}
    train = [{"pair": "the", **record} for record in train]
    task = write(tmp_path, settings={"pair_field": "pair"}, train=train, dev=good["dev"], test=good["test"])
    prepare_task(task, pretrained, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    ids = Split.load(tmp_path, "train").tokens[-1].tolist()
    assert tokenizer.mask_token_id not in ids
    assert ids.count(tokenizer.sep_token_id) == 2
    assert len(ids) > 12


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
    """Returns a byte-level tokenizer that adds no special tokens."""
    model = tokenizers.json.loads(tokenizers.byte_level().to_str())["model"]
    return GPT2TokenizerFast(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def text(of: str, label: str | int = "no", pair: str | None = None) -> Example:
    return Example("x, line 1", "0", of, pair, (), (label,))


def words(those: list[str], labels: list[str]) -> Example:
    return Example("x, line 1", "0", " ".join(those), None, tuple(those), tuple(labels))


def test_single_texts_are_tokenized_without_truncation(bert: PreTrainedTokenizerFast) -> None:
    long = "data model " * 200  # this text has more tokens than the model's longest input
    found = encode([text("a layer"), text(long, "yes"), text("")], "single_label", ["no", "yes"], bert)
    expected = [bert(each, add_special_tokens=True)["input_ids"] for each in ("a layer", long, "")]
    assert [each.tolist() for each in found.tokens] == expected
    assert [len(each) for each in found.tokens] == [4, 402, 2]
    assert found.labels == [0, 1, 0]
    assert {each.dtype for each in found.tokens} == {np.dtype(np.int32)}
    assert {each.dtype for each in found.segments} == {np.dtype(np.int8)}
    assert not any(each.any() for each in found.segments)


def test_pairs_are_joined_and_have_two_segments(bert: PreTrainedTokenizerFast) -> None:
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
    monkeypatch.setattr("adapt.task.prepare_task._BATCH", 3)
    parts = encode(examples, "single_label", ["no"], bert)
    assert [each.tolist() for each in parts.tokens] == [each.tolist() for each in whole.tokens]
    assert encode([], "single_label", ["no"], bert).tokens == []


def test_without_special_tokens(gpt2: PreTrainedTokenizerFast) -> None:
    found = encode([text("the data"), text("")], "single_label", ["no"], gpt2)
    assert found.tokens[0].tolist() == gpt2("the data")["input_ids"]
    # an empty text becomes one token, because models need at least one
    assert found.tokens[1].tolist() == [gpt2.eos_token_id]
    assert found.segments[1].tolist() == [0]
    pair = encode([text("the", pair="data")], "single_label", ["no"], gpt2)
    assert not pair.segments[0].any()  # all segments are 0, because GPT-2 has no segment embeddings
    nothing = encode([words([], [])], "tokens", CLASSES, gpt2)
    assert (nothing.tokens[0].tolist(), nothing.labels) == ([gpt2.eos_token_id], [[IGNORED]])


def test_words_have_the_same_pieces_as_in_a_wordpiece_tokenizer(bert: PreTrainedTokenizerFast) -> None:
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
def test_words_are_tokenized_as_one_text_in_every_family(family: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.FAMILIES[family]())
    found = encode([words(*each) for each in NER], "tokens", CLASSES, tokenizer)
    assert found.vanished_words == 0
    for number, (those, labels) in enumerate(NER):
        assert found.tokens[number].tolist() == tokenizer(" ".join(those))["input_ids"]
        assert len(found.labels[number]) == len(found.tokens[number])
        assert [CLASSES[label] for label in found.labels[number] if label != IGNORED] == labels


def test_the_space_before_a_word_is_part_of_its_token(gpt2: PreTrainedTokenizerFast) -> None:
    found = encode([words(["the", "data"], ["O", "B-X"])], "tokens", CLASSES, gpt2)
    tokens = gpt2.convert_ids_to_tokens(found.tokens[0].tolist())
    first = [token for token, label in zip(tokens, found.labels[0], strict=True) if label == 0]
    assert first == ["Ġdata"]


def test_words_without_a_token_are_counted(bert: PreTrainedTokenizerFast) -> None:
    found = encode([words(["the", "\x07", "", "data"], ["O", "B-X", "O", "I-X"])], "tokens", CLASSES, bert)
    assert found.vanished_words == 2
    assert [label for label in found.labels[0] if label != IGNORED] == [2, 1]


TEXTS = [*sentences(30, seed=8), "a <mask> b", "naïve  café\nit's"]


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_examples_equal_those_of_transformers(family: str, pairs: bool) -> None:
    tokenizer = wrapped(FAMILIES[family]())
    tokenizer.split_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens = True
    examples = [Example("x", "0", text, "a pair" if pairs else None, (), ("yes",)) for text in TEXTS]
    found = encode(examples, "single_label", ["yes"], tokenizer)
    for ids, segments, text in zip(found.tokens, found.segments, TEXTS, strict=True):
        expected = tokenizer(text, "a pair" if pairs else None)
        assert (ids.tolist(), ids.dtype) == (expected["input_ids"], np.int32)
        assert segments.tolist() == expected.get("token_type_ids", [0] * len(ids))


def example(text: str, label: str = "a", pair: str | None = None) -> Example:
    return Example("somewhere, line 1", "0", text, pair, (), (label,))


def test_unicode_form_case_and_spaces_are_ignored() -> None:
    train = [example("Naïve  models", "a"), example("ﬁne", "b"), example("")]
    test = [
        example(unicodedata.normalize("NFD", " naïve\tMODELS\n"), "a"),
        example("fine", "a"),
        example("naive models"),
        example(""),
    ]
    leaked, counts = find_leaks({"train": train, "dev": test[:1], "test": test})
    assert leaked == {"train": [False] * 3, "dev": [True], "test": [True, True, False, False]}
    assert counts == {"dev_in_train": 1, "test_in_train": 2, "test_in_train_same_label": 1, "test_in_dev": 1}


def test_leaks_of_pairs_need_both_texts() -> None:
    train = [example("food", pair="good"), example("food good")]
    test = [example("Food", pair="Good"), example("food", pair="bad"), example("food"), example("", pair="food good")]
    leaked, _ = find_leaks({"train": train, "dev": [], "test": test})
    assert leaked["test"] == [True, False, False, False]


def test_a_leak_has_the_same_label_as_any_train_example_of_its_text() -> None:
    train = [example("x", "a"), example("x", "b")]
    _, counts = find_leaks({"train": train, "dev": [], "test": [example("x", label) for label in "abc"]})
    assert counts["test_in_train_same_label"] == 2


def test_leak_counts_equal_those_of_a_pairwise_comparison() -> None:
    draw = random.Random(0)
    drawn = {
        split: [example(draw.choice("abcdefghijkl"), draw.choice("xy")) for _ in range(8)]
        for split in ("train", "dev", "test")
    }
    _, counts = find_leaks(drawn)
    assert counts == {
        "dev_in_train": sum(any(a.text == b.text for b in drawn["train"]) for a in drawn["dev"]),
        "test_in_train": sum(any(a.text == b.text for b in drawn["train"]) for a in drawn["test"]),
        "test_in_train_same_label": sum(
            any((a.text, a.labels) == (b.text, b.labels) for b in drawn["train"]) for a in drawn["test"]
        ),
        "test_in_dev": sum(any(a.text == b.text for b in drawn["dev"]) for a in drawn["test"]),
    }
    assert all(counts.values())


def test_duplicates_and_conflicts_are_counted() -> None:
    train = [example("A", "x"), example("a", "x"), example("a ", "y"), example("b", "x"), example("c"), example("c")]
    assert find_repeats(train) == {"duplicates": 2, "conflicting": 3}
