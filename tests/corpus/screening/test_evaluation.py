"""Which texts of evaluation sets are looked for: all that tasks are tested on, or the set is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapt.config import CorpusConfig, EvaluationSet, TaskConfig
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.identity import reading_identity
from adapt.corpus.readable import check_readable
from adapt.corpus.screening.decontaminate import evaluation_index
from adapt.corpus.screening.evaluation import read_set
from adapt.errors import DataError
from adapt.runner.digest import Digests
from adapt.task.texts import texts_of

LONG = "of these words there are enough for one whole run of thirteen of them"


def lines(file: Path, *records: Any) -> Path:
    rows = [record if isinstance(record, str) else json.dumps(record) for record in records]
    file.write_text("".join(f"{row}\n" for row in rows))
    return file


def read(*files: Path, most_bad: float = 0.01, **fields: Any) -> dict[str, list[str]]:
    found = read_set(EvaluationSet("exam", list(map(str, files)), **fields), CorpusConfig(max_bad_fraction=most_bad))
    return {Path(file).name: texts for file, texts in found.items()}


@pytest.mark.parametrize(
    ("settings", "records"),
    [
        ({}, [{"text": "one text", "label": "x"}, {"text": "", "label": "x"}, {"text": "another"}]),
        ({"text_field": "sentence"}, [{"sentence": "one text", "label": "x"}]),
        ({"pair_field": "aspect"}, [{"text": "good food", "aspect": "food"}, {"text": "a dog", "aspect": "an animal"}]),
        ({"kind": "tokens", "text_field": "words"}, [{"words": ["The", "model"]}, {"words": ["learns", "."]}]),
    ],
)
def test_the_texts_are_those_of_the_task(tmp_path: Path, settings: dict[str, Any], records: list[Any]) -> None:
    file = lines(tmp_path / "test.jsonl", *records)
    fields = {name: value for name, value in settings.items() if name != "kind"}
    assert read(file, **fields) == {"test.jsonl": texts_of(TaskConfig(test=str(file), **settings), "test")}


def test_every_format_gives_the_same_texts(tmp_path: Path) -> None:
    texts, pairs = ["one text", 'a "quoted"\nsecond line'], ["its pair", "other"]
    lines(tmp_path / "a.jsonl", *({"text": text, "pair": pair} for text, pair in zip(texts, pairs, strict=True)))
    with (tmp_path / "b.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "pair"), *zip(texts, pairs, strict=True)])
    pq.write_table(pa.table({"text": texts, "pair": pairs}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"text": [text.split(" ") for text in texts], "pair": pairs}), tmp_path / "d.parquet")
    found = read(*(tmp_path / name for name in ("a.jsonl", "b.csv", "c.parquet", "d.parquet")), pair_field="pair")
    assert set(map(tuple, found.values())) == {("one text", "its pair", texts[1], "other")}
    (tmp_path / "e.txt").write_text("one text\nanother\n")
    assert read(tmp_path / "e.txt") == {"e.txt": ["one text\n", "another\n"]}


def test_words_and_second_texts_are_kept_out_of_a_corpus(tmp_path: Path) -> None:
    records = {"text": ["a", "b"], "pair": LONG}, {"text": LONG[3:].split(), "pair": "c"}
    file = lines(tmp_path / "test.jsonl", *records)
    index = evaluation_index(CorpusConfig(decontaminate=[EvaluationSet("exam", str(file), pair_field="pair")]))
    assert index(f"it says {LONG}") == "in evaluation set exam"
    assert index(LONG[3:]) == "in evaluation set exam"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"sentence": LONG}, "has no field 'text'; it has 'sentence'"),
        ("[1]", "has no field 'text'; it has none"),
        ({"text": 3}, "1 of 1 records cannot be read.*record 1: text is neither a string nor a list of words"),
        ({"text": ["a", 1]}, "1 of 1 records cannot be read.*record 1: text is neither"),
        ({"text": None}, "1 of 1 records cannot be read.*record 1: no text"),
        ({"text": "!"}, "holds no text in the field 'text'"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_among_others(tmp_path: Path, record: Any, reason: str) -> None:
    """However small it is beside them: 1,000 texts of one task would hide all of another's."""
    good = lines(tmp_path / "good.jsonl", *({"text": f"{LONG} {number}"} for number in range(1000)))
    with pytest.raises(DataError, match=rf"evaluation set exam: .*odd\.jsonl:? {reason}") as caught:
        read(good, lines(tmp_path / "odd.jsonl", record))
    assert "a set of their own in corpus.decontaminate, with its text_field and pair_field" in caught.value.fix


def test_a_file_without_one_readable_record_is_refused_among_others(tmp_path: Path) -> None:
    good = lines(tmp_path / "good.jsonl", *({"text": f"{LONG} {number}"} for number in range(1000)))
    with pytest.raises(DataError, match=r"evaluation set exam: .*odd\.jsonl has no readable record") as caught:
        read(good, lines(tmp_path / "odd.jsonl", "broken"), most_bad=0.5)
    assert "leave it out of the evaluation set" in caught.value.fix


def test_few_unreadable_records_are_let_pass_as_configured(tmp_path: Path) -> None:
    file = lines(tmp_path / "test.jsonl", *[{"text": "one"}] * 3, "broken")
    assert len(read(file, most_bad=0.25)["test.jsonl"]) == 3
    with pytest.raises(DataError, match=r"1 of 4 records.*record 4: malformed JSON") as caught:
        read(file, most_bad=0.24)
    assert "corpus.max_bad_fraction (now 0.24)" in caught.value.fix


def test_a_second_text_is_asked_of_every_file(tmp_path: Path) -> None:
    one = lines(tmp_path / "one.jsonl", {"text": "a", "pair": "b"})
    with pytest.raises(DataError, match=r"two\.jsonl has no field 'pair'"):
        read(one, lines(tmp_path / "two.jsonl", {"text": "a"}), pair_field="pair")
    with pytest.raises(DataError, match="no text in the field 'pair'"):
        read(lines(tmp_path / "three.jsonl", {"text": "a", "pair": None}), pair_field="pair")
    (tmp_path / "plain.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"plain\.txt is plain text"):
        read(tmp_path / "plain.txt", pair_field="pair")


def test_it_is_said_before_anything_is_started(tmp_path: Path) -> None:
    file = str(lines(tmp_path / "corpus.jsonl", {"text": LONG}))
    odd = EvaluationSet("exam", str(lines(tmp_path / "odd.jsonl", {"sentence": LONG})))
    corpus = CorpusConfig(paths=file, decontaminate=[odd])
    with pytest.raises(DataError, match=r"evaluation set exam: .*odd\.jsonl has no field 'text'"):
        check_readable(build_manifest(corpus, Digests(tmp_path / "digests")), corpus)


def test_the_fields_of_a_set_are_part_of_the_key(tmp_path: Path) -> None:
    file = str(lines(tmp_path / "test.jsonl", {"text": LONG, "pair": "b"}))
    digests = Digests(tmp_path / "digests")
    sets = [EvaluationSet("exam", file, *fields) for fields in (("text",), ("pair",), ("text", "pair"))]
    identities = [reading_identity(CorpusConfig(decontaminate=[each]), digests)["decontaminate"] for each in sets]
    assert [each["sets"]["exam"]["pair_field"] for each in identities] == [None, None, "pair"]
    assert identities[0] != identities[1]
