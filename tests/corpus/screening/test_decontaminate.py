"""Which documents an evaluation set drives out, against a search with slices of words."""

import json
import random
from pathlib import Path

import pytest

from adapt.config import CorpusConfig, EvaluationSet
from adapt.corpus.screening.decontaminate import SHORTEST_RUN, build_index, evaluation_index
from adapt.corpus.screening.evaluation import evaluation_manifests
from adapt.errors import ConfigError, DataError
from adapt.runner.digest import Digests


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
def test_against_a_search(n: int, overlap: float) -> None:
    """Texts of all lengths, whole, in part, with changed words, alone and inside of documents."""
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
def test_characters_that_nobody_sees_do_not_hide_a_text(unseen: str, where: str) -> None:
    """Soft hyphens stand in text from books and the web, zero-width spaces in text from HTML."""
    plain, odd = text(40), text(40).replace("w", f"w{unseen}")
    evaluation, document = (plain, odd) if where == "document" else (odd, plain)
    assert build_index([("exam", [evaluation])], 13, 0.5)(document) == "in evaluation set exam"


@pytest.mark.parametrize("length", [13, 20, 50])
def test_the_pieces_of_a_text_are_found(length: int) -> None:
    """A corpus of sentences, or of paragraphs, holds long texts in pieces, none of which is half of one."""
    whole = words(200)
    index = build_index([("exam", [" ".join(whole)])], 13, 0.5)
    pieces = [whole[start : start + length] for start in range(0, 200 - length + 1, length)]
    assert {index(" ".join(piece)) for piece in pieces} == {"in evaluation set exam"}
    quoting = [*words(60, seed=7), *pieces[0][:20], *words(60, seed=8)]
    assert index(" ".join(quoting)) is None


def test_the_set_with_the_largest_share_is_counted() -> None:
    first, second = text(60, seed=1), text(60, seed=2)
    index = build_index([("a", ["", "!?", first]), ("b", [second, "short text"])], 13, 0.5)
    assert index(" ".join([*first.split()[:40], *second.split()])) == "in evaluation set b"
    assert index(f"{text(9, seed=3)} {first}") == "in evaluation set a"
    assert index("Short text!") == "in evaluation set b"
    assert index(f"a short text {text(20, seed=4)}") is None


def test_runs_that_several_texts_share_count_for_each() -> None:
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
    assert index.counts == {"exam": {str(tmp_path / "test.jsonl"): 1}}  # a text without a word cannot be looked for


def test_what_is_wrong_with_an_evaluation_set_is_said(tmp_path: Path) -> None:
    wrong = corpus(tmp_path, decontaminate=[EvaluationSet("exam", str(tmp_path / "gone.jsonl"))])
    digests = Digests(tmp_path / "digests.json")
    with pytest.raises(DataError, match=r"gone\.jsonl matches no file"):
        evaluation_manifests(wrong, digests)
    twice = corpus(tmp_path)
    with pytest.raises(ConfigError, match="two sets named exam"):
        evaluation_manifests(corpus(tmp_path, decontaminate=[*twice.decontaminate] * 2), digests)


def test_documents_looked_at_together_are_judged_as_each_is_alone() -> None:
    """No run reaches from one document into the next, whatever their lengths."""
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
