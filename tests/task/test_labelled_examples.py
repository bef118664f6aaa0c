"""Tests that examples of all formats are read with file and line, and that unusable records are refused or counted."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapt.config import TaskConfig
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.records import read_objects
from adapt.support.errors import ConfigError, DataError
from adapt.task.labelled_examples import (
    Example,
    check_split,
    classes_of,
    metric_of_task,
    read_file,
    split_files,
    texts_of,
)
from adapt.task.prepare_task import SPLITS
from tests.task.tasks import GOOD, WORDS, with_train, write

RECORDS = [
    {"key": "k1", "text": "one, two", "pair": "2", "label": "a|b"},
    {"key": "k2", "text": 'a "quoted"\nsecond line', "pair": "", "label": ""},
    {"key": "k3", "text": "naïve 東京", "pair": "x", "label": "b, c"},
]
TASK = TaskConfig(train="x", kind="multi_label", pair_field="pair", id_field="key")
EXPECTED = [
    ("k1", "one, two", "2", ("a", "b")),
    ("k2", 'a "quoted"\nsecond line', "", ()),
    ("k3", "naïve 東京", "x", ("b", "c")),
]


def write_lines(path: Path) -> None:
    content = "\n\n".join(json.dumps(record) for record in RECORDS).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_values(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(RECORDS[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(RECORDS)


def write_table(path: Path) -> None:
    table = pa.Table.from_pylist(RECORDS)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


FORMATS = {
    "jsonl": (write_lines, ["line 1", "line 3", "line 5"]),
    "jsonl.gz": (write_lines, ["line 1", "line 3", "line 5"]),
    # line 1 is the header, and the second record takes two lines
    "csv": (write_values, ["line 2", "line 4", "line 5"]),
    "tsv": (write_values, ["line 2", "line 4", "line 5"]),
    "parquet": (write_table, ["row 1", "row 2", "row 3"]),
    "arrow": (write_table, ["row 1", "row 2", "row 3"]),
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_all_formats_give_the_same_examples(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train.{suffix}"
    write, places = FORMATS[suffix]
    write(path)
    found = list(read_file(TASK, str(path)))
    assert [place for place, _ in found] == [f"{path}, {place}" for place in places]
    examples = [example for _, example in found if isinstance(example, Example)]
    assert [(each.id, each.text, each.pair, each.labels) for each in examples] == EXPECTED
    assert [each.place for each in examples] == [place for place, _ in found]


@pytest.mark.parametrize(
    ("kind", "record", "reason"),
    [
        ("single_label", '{"text": "a", "label": null}', "no label"),
        ("single_label", '{"text": "a", "label": " "}', "no label"),
        ("single_label", '{"text": "a", "label": true}', "label is neither a string nor an integer"),
        ("single_label", '{"text": "a", "label": 1.0}', "label is neither a string nor an integer"),
        ("single_label", '{"text": "a", "label": ["x"]}', "label is neither a string nor an integer"),
        ("single_label", '{"text": null, "label": "x"}', "no text"),
        ("single_label", '{"text": 3, "label": "x"}', "text is not a string"),
        ("single_label", '{"text": "\\ud83d", "label": "x"}', "unpaired Unicode surrogate in the text"),
        ("single_label", '{"text": "a", "label": "\\ud83d"}', "unpaired Unicode surrogate in the label"),
        ("multi_label", '{"text": "a", "label": ["x", "\\ud83d"]}', "unpaired Unicode surrogate in the label"),
        ("single_label", '{"text": "a", "la', "malformed JSON"),
        ("single_label", '"a"', "not a JSON object"),
        ("multi_label", '{"text": "a", "label": 1}', "label is not a list"),
        ("multi_label", '{"text": "a", "label": null}', "no label"),
        ("multi_label", '{"text": "a", "label": ["x", null]}', "label is neither a string nor an integer"),
        ("tokens", '{"text": "a b", "label": ["O", "O"]}', "text is not a list of words"),
        ("tokens", '{"text": ["a", 1], "label": ["O", "O"]}', "text is not a list of words"),
        ("tokens", '{"text": ["a"], "label": "O"}', "label is not a list"),
    ],
)
def test_unusable_records_are_reported_with_a_reason(tmp_path: Path, kind: str, record: str, reason: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(record)
    with pytest.raises(DataError, match=r"train\.jsonl ha|train\.jsonl holds no usable example"):
        list(read_file(TaskConfig(kind=kind), str(path)))  # a file that only has unusable records is refused
    good = {"text": ["a"] if kind == "tokens" else "a", "label": "x" if kind == "single_label" else ["x"]}
    path.write_text(f"{record}\n{json.dumps(good)}\n")
    (place, found), _ = read_file(TaskConfig(kind=kind), str(path))
    assert isinstance(found, Bad)
    assert found == reason
    assert place == f"{path}, line 1"


@pytest.mark.parametrize(
    ("kind", "value", "labels"),
    [
        ("single_label", " x ", ("x",)),
        ("single_label", 3, (3,)),
        ("multi_label", ["b", "a", "b"], ("a", "b")),
        ("multi_label", [], ()),
        ("multi_label", "b,a|c", ("a", "b", "c")),
        ("multi_label", ["b", " ", ""], ("b",)),
        ("multi_label", "b,|", ("b",)),
    ],
)
def test_labels(tmp_path: Path, kind: str, value: object, labels: tuple[object, ...]) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"text": "a", "label": value}))
    ((_, found),) = read_file(TaskConfig(kind=kind), str(path))
    assert found.labels == labels


def test_words_are_joined_with_spaces(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": ["a", "b"], "label": ["O", "B-X"]}')
    ((_, found),) = read_file(TaskConfig(kind="tokens"), str(path))
    assert (found.text, found.words, found.labels) == ("a b", ("a", "b"), ("O", "B-X"))


@pytest.mark.parametrize(
    ("setting", "name", "fix"),
    [
        ("text_field", "txt", "set task.text_field; did you mean 'text'?"),
        ("label_field", "zzz", "set task.label_field to one of them"),
        ("pair_field", "labels", "set task.pair_field; did you mean 'label'?"),
        ("id_field", "zzz", "set task.id_field to one of them"),
    ],
)
def test_an_error_for_a_missing_field_lists_the_existing_ones(
    tmp_path: Path, setting: str, name: str, fix: str
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('not JSON\n{"text": "a", "label": "b"}\n')
    with pytest.raises(DataError, match=f"train.jsonl, line 2 has no field '{name}'; it has 'text', 'label'") as caught:
        list(read_file(TaskConfig(**{setting: name}), str(path)))
    assert caught.value.fix == fix


def test_a_null_id_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "a", "label": "b", "id": null}\n')
    with pytest.raises(DataError, match="line 1 has no id"):
        list(read_file(TaskConfig(id_field="id"), str(path)))


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.txt", b"plain", "plain text, which has no fields"),
        ("a.json", b'[{"text": "a"}]', "one JSON array"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a", "label": "b"}' * 99, mtime=0)[:-9], "is broken"),
        ("a.parquet", b"no parquet", "is broken"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=what) as caught:
        list(read_file(TaskConfig(), str(tmp_path / name)))
    assert name in caught.value.what
    assert caught.value.fix
    assert "corpus" not in caught.value.fix


def test_whole_records_with_all_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(600)), "b": [[n] for n in range(600)]}), path)
    assert list(read_objects(path)) == [(n + 1, {"a": n, "b": [n]}) for n in range(600)]
    (tmp_path / "empty.csv").write_text("")
    assert list(read_objects(tmp_path / "empty.csv")) == []


@pytest.mark.parametrize(
    "value",
    [
        pa.array([4 * 10**6], pa.date32()),
        pa.array([2**58], pa.timestamp("us")),
        pa.array([10**18], pa.duration("ms")),
        pa.array([0], pa.timestamp("us", tz="Nowhere/Town")),
        pa.array([[4 * 10**6]], pa.list_(pa.date32())),
    ],
    ids=lambda value: str(value.type),
)
def test_a_date_that_python_cannot_represent_is_read_as_none(tmp_path: Path, value: pa.Array) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x"], "when": value}), path)
    assert list(read_objects(path)) == [(1, {"text": "x", "when": None})]


def test_files_of_a_split_are_listed(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.csv", "note.doc"):
        (tmp_path / name).touch()
    assert split_files(TaskConfig(dev=str(tmp_path)), "dev") == [str(tmp_path / "a.csv"), str(tmp_path / "b.jsonl")]
    with pytest.raises(ConfigError, match=r"task\.test is empty"):
        split_files(TaskConfig(), "test")
    with pytest.raises(DataError, match=r"task\.dev: .*absent\.jsonl matches no file"):
        split_files(TaskConfig(dev="absent.jsonl"), "dev")


def test_half_a_character_in_an_id(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "a", "label": "x", "n": "\\ud83d"}\n{"text": "b", "label": "x", "n": 2}\n')
    (_, found), _ = read_file(TaskConfig(id_field="n"), str(path))
    assert found == "unpaired Unicode surrogate in the id"


REFUSED: dict[str, tuple[dict[str, list[Any]], dict[str, list[Any]], dict[str, Any], str]] = {
    "null label in test": (
        GOOD,
        {"test": [{"text": "a", "label": "yes"}, {"text": "b", "label": None}]},
        {},
        r"test\.jsonl, line 2 has no label, so test cannot be scored",
    ),
    "label of some dev examples missing": (
        GOOD,
        {"dev": [{"text": "a", "label": "yes"}, {"text": "b"}]},
        {},
        r"dev\.jsonl, line 2 has no label",
    ),
    "an id twice": (
        GOOD,
        {"train": [{"text": "a", "label": "yes", "n": n} for n in (1, 2, 1)]},
        {"id_field": "n"},
        r"the id '1' is in .*train\.jsonl, line 1 and again in .*train\.jsonl, line 3",
    ),
    "no examples": (GOOD, {"test": []}, {}, r"task\.test holds no usable example"),
    "only empty texts": (GOOD, {"train": [{"text": " ", "label": "yes"}]}, {}, r"task\.train holds no usable example"),
    "only empty texts to test on": (
        GOOD,
        {"test": [{"text": " ", "label": "yes"}]},
        {},
        r"task\.test holds no usable example",
    ),
    "too many unusable": (
        GOOD,
        {"train": with_train("{", {"text": "a", "label": None})},
        {},
        r"2 of 4 records of task\.train are unusable; the first is .*train\.jsonl, line 3: malformed JSON",
    ),
    "words without labels": (
        WORDS,
        {"dev": [{"text": ["a", "b"], "label": ["O"]}]},
        {},
        r"dev\.jsonl, line 1 has 2 words and 1 labels",
    ),
    "labels of another scheme": (
        WORDS,
        {"dev": [{"text": ["a", "b"], "label": ["O", "S-X"]}]},
        {},
        r"dev\.jsonl, line 1 has the label 'S-X', which is not O, B-",
    ),
    "labels as numbers": (WORDS, {"dev": [{"text": ["a"], "label": [0]}]}, {}, "line 1 has the label 0"),
    "integers and strings": (
        GOOD,
        {"test": [{"text": "a", "label": 1}]},
        {},
        r"labels are integers in .*test\.jsonl, line 1 and strings in .*train\.jsonl, line 1",
    ),
    "one class": (GOOD, {"train": GOOD["train"][:1]}, {}, r"task\.train has one class only: yes"),
    "no label ever": (
        GOOD,
        {split: [{"text": "a", "label": []}] for split in SPLITS},
        {"kind": "multi_label"},
        r"task\.train has one class only: none",
    ),
    "words of one label": (
        WORDS,
        {"train": [{"text": ["a"], "label": ["B-X"]}]},
        {},
        r"task\.train has one class only: B-X",
    ),
    "no entity": (WORDS, {"train": [{"text": ["a"], "label": ["O"]}]}, {}, r"no word of task\.train is labelled"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refused(tmp_path: Path, fault: str) -> None:
    examples, splits, settings, what = REFUSED[fault]
    kind = {"kind": "tokens"} if examples is WORDS else {}
    task = write(tmp_path, examples, {**kind, **settings}, **splits)
    with pytest.raises(DataError, match=what) as caught:
        classes_of(task.kind, {split: check_split(task, split).examples for split in SPLITS})
    assert caught.value.fix


def test_empty_texts_are_removed_from_train_and_not_from_test(tmp_path: Path) -> None:
    blank = [{"text": text, "label": "yes"} for text in ("", " \n", "\u00a0", "a")]
    task = write(tmp_path, train=blank, test=blank)
    train, test = check_split(task, "train"), check_split(task, "test")
    assert (train.empty_texts, [each.text for each in train.examples]) == (3, ["a"])
    assert (test.empty_texts, [each.text for each in test.examples]) == (3, ["", " \n", "\u00a0", "a"])
    assert [each.id for each in train.examples] == ["3"]  # the id counts all records, even omitted records


def test_an_empty_text_with_a_second_one_is_not_empty(tmp_path: Path) -> None:
    pairs = [{"text": "", "pair": pair, "label": "yes"} for pair in ("x", " ")]
    found = check_split(write(tmp_path, train=pairs, settings={"pair_field": "pair"}), "train")
    assert (found.empty_texts, [each.pair for each in found.examples]) == (1, ["x"])


def test_unusable_records_are_counted_by_reason(tmp_path: Path) -> None:
    bad = ["{", "[1]", {"text": "a", "label": None}, {"text": None, "label": "yes"}, {"label": "yes"}]
    task = write(tmp_path, settings={"max_bad_fraction": 5 / 7}, train=with_train(*bad))
    found = check_split(task, "train")
    assert len(found.examples) == 2
    assert found.unusable == {"malformed JSON": 1, "not a JSON object": 1, "no label": 1, "no text": 2}


def test_ids_number_the_records_of_all_files(tmp_path: Path) -> None:
    task = write(tmp_path)
    both = [str(tmp_path / "dev.jsonl"), str(tmp_path / "test.jsonl")]
    task = type(task)(train=both)
    assert [each.id for each in check_split(task, "train").examples] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([10, 2, -3], ["-3", "2", "10"]),
        (["10", "2", "-3"], ["-3", "2", "10"]),
        (["b", "10", "a"], ["10", "a", "b"]),
    ],
)
def test_classes_are_sorted(tmp_path: Path, labels: list[Any], classes: list[str]) -> None:
    *train, unseen = ({"text": "a", "label": label} for label in labels)
    task = write(tmp_path, train=train, dev=train, test=[*train, unseen])
    assert classes_of("single_label", {split: check_split(task, split).examples for split in SPLITS}) == classes


@pytest.mark.parametrize(
    ("settings", "metric"),
    [({}, "macro_f1"), ({"kind": "tokens"}, "entity_f1"), ({"metric": "accuracy"}, "accuracy")],
)
def test_metric(tmp_path: Path, settings: dict[str, Any], metric: str) -> None:
    assert metric_of_task(write(tmp_path, settings=settings)) == metric


def test_left_out_records_are_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`texts_of` logs the number of records that it leaves out, and the first of them.

    The text of a record that is left out is not trained on. If the record is in dev or test, its text is also not
    removed from other texts.
    """
    task = write(tmp_path, settings={"max_bad_fraction": 0.5}, train=with_train({"text": None}, "broken"))
    assert texts_of(task, "dev") == ["a layer", "a token"]
    assert capsys.readouterr().err == ""
    assert texts_of(task, "train") == ["a model", "this data"]
    said = f"left out 2 of 4 records of train; the first is {tmp_path}/train.jsonl, line 3: no text"
    assert capsys.readouterr().err == f"task task: {said}\n"
