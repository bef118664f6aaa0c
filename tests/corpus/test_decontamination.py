"""Tests that documents with evaluation texts are dropped, by comparison with a brute-force search."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapt.config import CorpusConfig, EvaluationSet, TaskConfig
from adapt.corpus.corpora import check_readable, reading_identity
from adapt.corpus.decontamination import SHORTEST_RUN, build_index, evaluation_index, evaluation_manifests, read_set
from adapt.corpus.files.manifest import build_manifest
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError
from adapt.task.labelled_examples import texts_of


def words(number: int, seed: int = 0, kinds: int = 10_000) -> list[str]:
    draw = random.Random(seed)
    return [f"w{draw.randrange(kinds)}" for _ in range(number)]


def text(number: int, seed: int = 0) -> str:
    return " ".join(words(number, seed))


def runs(found: list[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(found[start : start + n]) for start in range(len(found) - n + 1)}


def searched(document: list[str], evaluation: list[str], n: int, overlap: float) -> bool:
    if len(evaluation) >= n:
        wanted, own = runs(evaluation, n), runs(document, n)
        is_piece = len(document) >= SHORTEST_RUN and 0 < overlap * len(own) <= len(wanted & own)
        return is_piece or len(wanted & own) >= overlap * len(wanted)
    if len(evaluation) >= min(SHORTEST_RUN, n):
        return tuple(evaluation) in runs(document, len(evaluation))
    return bool(evaluation) and evaluation == document


@pytest.mark.parametrize("n", [3, 8, 13])
@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.99])
def test_index_finds_the_same_as_a_brute_force_search(n: int, overlap: float) -> None:
    """Tests 300 random pairs of a document and an evaluation text.

    The evaluation texts have 1 to 40 words. The documents contain a complete, shortened or changed copy of the text,
    either as the whole document or between other words.
    """
    draw = random.Random(n)
    hits = 0
    for seed in range(300):
        evaluation = words(draw.randint(1, 40), seed, kinds=30 if seed % 2 else 10_000)
        part = evaluation[
            draw.randint(0, 3) if draw.random() < 0.5 else 0 : len(evaluation) - draw.choice([0, 0, 2, 9])
        ]
        if part and draw.random() < 0.5:
            part[draw.randrange(len(part))] = "changed"
        around = draw.choice([0, 5, 30])
        document = [*words(around, seed + 1000), *part, *words(around, seed + 2000)]
        found = build_index([("set", [" ".join(evaluation)])], n, overlap)(" ".join(document))
        expected = searched(document, evaluation, n, overlap)
        assert (found == "in evaluation set set") == expected, (evaluation, document)
        hits += expected
    assert 30 < hits < 270


def test_form_case_and_punctuation_do_not_hide_a_text() -> None:
    index = build_index([("exam", ["What is the loss of a model that has never seen the held-out text?"])], 13, 0.5)
    hidden = 'He asked: "WHAT is the LOSS of a model --\nthat has never seen the held out text"!'
    assert index(hidden) == "in evaluation set exam"
    assert index("What is the loss of a model?") is None


@pytest.mark.parametrize("unseen", ["\u00ad", "\u200b"])
@pytest.mark.parametrize("where", ["document", "evaluation text"])
def test_invisible_characters_do_not_hide_a_text(unseen: str, where: str) -> None:
    """A copy must be found even if every word of the document or of the evaluation text has an invisible character.

    Such characters occur in practice: soft hyphens in books and on the web, zero-width spaces in HTML.
    """
    plain, odd = text(40), text(40).replace("w", f"w{unseen}")
    evaluation, document = (plain, odd) if where == "document" else (odd, plain)
    assert build_index([("exam", [evaluation])], 13, 0.5)(document) == "in evaluation set exam"


@pytest.mark.parametrize("length", [13, 20, 50])
def test_pieces_of_an_evaluation_text_are_found(length: int) -> None:
    """Documents that are pieces of a long evaluation text are dropped, although they have few of its n-grams.

    Corpora that are split into sentences or paragraphs have such documents. All n-grams of a piece are in the text. A
    longer document that quotes 20 words of the text stays, because most of its n-grams are not in the text.
    """
    whole = words(200)
    index = build_index([("exam", [" ".join(whole)])], 13, 0.5)
    pieces = [whole[start : start + length] for start in range(0, 200 - length + 1, length)]
    assert {index(" ".join(piece)) for piece in pieces} == {"in evaluation set exam"}
    quoting = [*words(60, seed=7), *pieces[0][:20], *words(60, seed=8)]
    assert index(" ".join(quoting)) is None


def test_the_reason_names_the_set_with_the_largest_share() -> None:
    first, second = text(60, seed=1), text(60, seed=2)
    index = build_index([("a", ["", "!?", first]), ("b", [second, "short text"])], 13, 0.5)
    assert index(" ".join([*first.split()[:40], *second.split()])) == "in evaluation set b"
    assert index(f"{text(9, seed=3)} {first}") == "in evaluation set a"
    assert index("Short text!") == "in evaluation set b"
    assert index(f"a short text {text(20, seed=4)}") is None


def test_runs_shared_by_several_texts_count_for_each_of_them() -> None:
    shared = text(30, seed=5)
    index = build_index([("a", [shared]), ("b", [f"{shared} {text(200, seed=6)}"])], 13, 0.5)
    assert index(shared) == "in evaluation set a"


@pytest.mark.parametrize("document", ["", "...", "one", text(5), text(500)])
def test_documents_that_share_nothing_stay(document: str) -> None:
    assert build_index([("a", [text(50, seed=9)])], 13, 0.5)(document) is None
    assert build_index([], 13, 0.5)(document) is None


def corpus(folder: Path, **settings: object) -> CorpusConfig:
    (folder / "test.jsonl").write_text(json.dumps({"body": text(20)}) + "\n" + json.dumps({"body": "!"}) + "\n")
    sets = [EvaluationSet("exam", str(folder / "test.jsonl"), "body")]
    return CorpusConfig(**{"decontaminate": sets, **settings})  # type: ignore[arg-type]


def test_evaluation_sets_come_from_files(tmp_path: Path) -> None:
    index = evaluation_index(corpus(tmp_path, decontaminate_ngram=8, decontaminate_overlap=0.9))
    assert (index.n, index.overlap, index.names) == (8, 0.9, ["exam"])
    assert index(text(20)) == "in evaluation set exam"
    assert index.counts == {"exam": {str(tmp_path / "test.jsonl"): 1}}  # a text without words is not counted


def test_missing_files_and_repeated_names_of_sets_are_refused(tmp_path: Path) -> None:
    wrong = corpus(tmp_path, decontaminate=[EvaluationSet("exam", str(tmp_path / "gone.jsonl"))])
    digests = Digests(tmp_path / "digests.json")
    with pytest.raises(DataError, match=r"gone\.jsonl matches no file"):
        evaluation_manifests(wrong, digests)
    twice = corpus(tmp_path)
    with pytest.raises(ConfigError, match="two sets named exam"):
        evaluation_manifests(corpus(tmp_path, decontaminate=[*twice.decontaminate] * 2), digests)


def test_many_documents_give_the_same_results_as_single_ones() -> None:
    """The method `many` gives the same results as one call per document, so no run of words spans two documents."""
    draw = random.Random(5)
    evaluations = [
        words(length, seed, kinds=40) for seed, length in enumerate([1, 2, 3, 5, 7, 8, 9, 12, 13, 14, 30] * 3)
    ]
    index = build_index([("set", map(" ".join, evaluations))], 13, 0.5)
    documents = [" ".join(words(draw.choice([0, 1, 2, 5, 8, 20]), draw.randrange(99), kinds=40)) for _ in range(60)]
    for evaluation in evaluations:
        middle = draw.randrange(len(evaluation) + 1)
        documents += [" ".join(evaluation[:middle]), " ".join(evaluation[middle:]), " ".join(evaluation).upper(), "!"]
    alone = [index(document) for document in documents]
    assert index.many(documents) == alone
    assert 30 < sum(reason is not None for reason in alone) < len(documents) - 30
    assert index.many([]) == []


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
def test_texts_are_read_like_those_of_the_task(tmp_path: Path, settings: dict[str, Any], records: list[Any]) -> None:
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


def test_lists_of_words_and_second_texts_are_removed_from_a_corpus(tmp_path: Path) -> None:
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
def test_an_unreadable_file_is_refused_among_larger_readable_ones(tmp_path: Path, record: Any, reason: str) -> None:
    """The limit on unreadable records applies to each file separately.

    Otherwise, 1,000 readable texts in one file would hide another file in which no text can be read.
    """
    good = lines(tmp_path / "good.jsonl", *({"text": f"{LONG} {number}"} for number in range(1000)))
    with pytest.raises(DataError, match=rf"evaluation set exam: .*odd\.jsonl:? {reason}") as caught:
        read(good, lines(tmp_path / "odd.jsonl", record))
    assert (
        "a separate set in corpus.decontaminate, with the text_field and pair_field of these files" in caught.value.fix
    )


def test_a_file_without_a_readable_record_is_refused_among_others(tmp_path: Path) -> None:
    good = lines(tmp_path / "good.jsonl", *({"text": f"{LONG} {number}"} for number in range(1000)))
    with pytest.raises(DataError, match=r"evaluation set exam: .*odd\.jsonl has no readable record") as caught:
        read(good, lines(tmp_path / "odd.jsonl", "broken"), most_bad=0.5)
    assert "leave it out of the evaluation set" in caught.value.fix


def test_unreadable_records_below_the_configured_share_are_allowed(tmp_path: Path) -> None:
    file = lines(tmp_path / "test.jsonl", *[{"text": "one"}] * 3, "broken")
    assert len(read(file, most_bad=0.25)["test.jsonl"]) == 3
    with pytest.raises(DataError, match=r"1 of 4 records.*record 4: malformed JSON") as caught:
        read(file, most_bad=0.24)
    assert "corpus.max_bad_fraction (now 0.24)" in caught.value.fix


def test_every_file_must_have_the_field_of_the_second_text(tmp_path: Path) -> None:
    one = lines(tmp_path / "one.jsonl", {"text": "a", "pair": "b"})
    with pytest.raises(DataError, match=r"two\.jsonl has no field 'pair'"):
        read(one, lines(tmp_path / "two.jsonl", {"text": "a"}), pair_field="pair")
    with pytest.raises(DataError, match="no text in the field 'pair'"):
        read(lines(tmp_path / "three.jsonl", {"text": "a", "pair": None}), pair_field="pair")
    (tmp_path / "plain.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"plain\.txt is plain text"):
        read(tmp_path / "plain.txt", pair_field="pair")


def test_wrong_fields_of_a_set_are_refused_before_the_job_starts(tmp_path: Path) -> None:
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
