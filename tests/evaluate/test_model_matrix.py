"""Tests the comparison of models on several domains, the similarity of domains, and the tables and figures of both."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy

from adapt.corpus.token_shards import write_shard
from adapt.evaluate import model_matrix as module
from adapt.evaluate.compared_models import ModelsCompared
from adapt.evaluate.measure_model import HITS_FILE, LOSSES_FILE
from adapt.evaluate.measurements import Similar
from adapt.evaluate.model_matrix import (
    FILE,
    PICTURE,
    SIMILARITY_FILE,
    SIMILARITY_PICTURE,
    SMOOTHING,
    accuracy_changes,
    compare_domains,
    compare_models,
    sample_texts,
    similarities,
    word_overlaps,
)
from adapt.model.locate import Pretrained
from adapt.support.errors import DataError

DOMAINS = ("cells", "general")


def evaluation(folder: Path, losses: dict[str, np.ndarray], counts: np.ndarray) -> Path:
    folder.mkdir()
    values = {name: {"losses": each.tolist(), "counts": counts.tolist()} for name, each in losses.items()}
    (folder / LOSSES_FILE).write_text(json.dumps(values))
    return folder


@pytest.fixture
def evaluations(tmp_path: Path) -> dict[str, Path]:
    """Returns the folders of evaluations of two models on 40 documents per domain, keyed by model.

    The second model's loss per token is lower by 0.5 on cells and higher by 0.25 on general text, in every document.
    """
    draw = np.random.default_rng(0)
    counts = draw.integers(1, 9, 40)
    base = {name: draw.gamma(5, 1, 40) * counts for name in DOMAINS}
    other = {"cells": base["cells"] - 0.5 * counts, "general": base["general"] + 0.25 * counts}
    return {
        "base": evaluation(tmp_path / "one", base, counts),
        "DAPT": evaluation(tmp_path / "two", other, counts),
    }


def test_losses_and_paired_changes(evaluations: dict[str, Path], tmp_path: Path) -> None:
    found = compare_models(evaluations, DOMAINS, 500, tmp_path)
    assert (found.models, found.domains) == (["base", "DAPT"], ["cells", "general"])
    values = json.loads((evaluations["DAPT"] / LOSSES_FILE).read_text())["cells"]
    assert found.loss[1][0] == pytest.approx(sum(values["losses"]) / sum(values["counts"]))
    np.testing.assert_allclose(found.change, [[0, 0], [-0.5, 0.25]], atol=1e-9)
    # The difference is the same in all documents, so its interval has width 0. The losses' intervals are wider.
    np.testing.assert_allclose(found.change_low, found.change_high, atol=1e-9)
    assert (np.array(found.loss_low) + 0.1 < found.loss).all()
    assert (np.array(found.loss_high) - 0.1 > found.loss).all()


def test_accuracies_are_compared_text_by_text(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    base = draw.integers(0, 2, 200)
    other = np.where(draw.random(200) < 0.3, 1, base)  # the second model is right more often
    folders = {"base": tmp_path / "one", "DAPT": tmp_path / "two"}
    for folder, hits in zip(folders.values(), (base, other), strict=True):
        folder.mkdir()
        (folder / HITS_FILE).write_text(json.dumps({"intent": hits.tolist(), "empty": []}))
    found = accuracy_changes(folders, 2000)["intent"]["DAPT"]
    assert found.value == pytest.approx(other.mean() - base.mean())
    error = (other - base).std() / 200**0.5
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.01)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.01)
    (folders["DAPT"] / HITS_FILE).unlink()  # results of earlier versions lack this file
    assert accuracy_changes(folders, 100) == {}


def test_matrix_and_picture_are_written(evaluations: dict[str, Path], tmp_path: Path) -> None:
    found = compare_models(evaluations, DOMAINS, 10, tmp_path)
    assert ModelsCompared(**json.loads((tmp_path / FILE).read_text())) == found
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_a_single_document_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = evaluation(tmp_path / "one", {"cells": np.array([3.0])}, np.array([2]))
    found = compare_models({"base": only}, ["cells"], 10, tmp_path)
    assert (found.loss, found.loss_low, found.change_high) == ([[1.5]], [[None]], [[None]])
    assert "cells has 1 held-out documents, too few for a reliable interval" in capsys.readouterr().err


def test_a_domain_without_heldout_text_is_refused(tmp_path: Path) -> None:
    empty = evaluation(tmp_path / "one", {"cells": np.array([])}, np.array([]))
    with pytest.raises(DataError, match=r"cells has no held-out text[\s\S]*corpus.heldout_fraction"):
        compare_models({"base": empty}, ["cells"], 10, tmp_path)


@pytest.fixture
def corpora(tmp_path: Path) -> dict[str, Path]:
    """Returns the folders of two prepared corpora with words of the tiny tokenizer, keyed by domain."""
    found = {}
    for place, name in enumerate(("cells", "code")):
        folder = tmp_path / name
        folder.mkdir()
        write_shard(folder / "train-000000-000000.arrow", [[6 + place, 7, 8], [6 + place, 7]] * 3, 1000, {})
        found[name] = folder
    return found


def test_domains_are_compared_by_words(tiny_bert: Path, corpora: dict[str, Path], tmp_path: Path):
    found = compare_domains(corpora, [], Pretrained(tiny_bert, tiny_bert, False), 100, tmp_path)
    assert Similar(**json.loads((tmp_path / SIMILARITY_FILE).read_text())) == found
    assert found.domains == ["cells", "code"]
    assert found.documents == [6, 6]
    assert found.model_loss is None
    assert (tmp_path / SIMILARITY_PICTURE).read_bytes().startswith(b"\x89PNG")


def test_domains_are_compared_by_losses_of_models(tiny_bert: Path, corpora: dict[str, Path], tmp_path: Path):
    evaluations = []
    for place in range(2):
        folder = tmp_path / f"evaluation-{place}"
        folder.mkdir()
        losses = {name: {"losses": [1.0 + place, 3.0], "counts": [1, 3]} for name in corpora}
        (folder / LOSSES_FILE).write_text(json.dumps(losses))
        evaluations.append(folder)
    found = compare_domains(corpora, evaluations, Pretrained(tiny_bert, tiny_bert, False), 100, tmp_path)
    assert found.model_loss == [[1.0, 1.0], [1.25, 1.25]]


CELLS = ["cells divide", "cells grow", "cells the of divide", "mice eat cells"]
CODE = ["programs divide work", "programs grow", "programs the of run", "programs divide"]


def test_overlap_of_the_most_frequent_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "TOP_WORDS", 3)
    # The three most frequent words of "cells": cells (4), divide (2) and eat (1, alphabetically before grow and mice).
    # The words of "code": programs (4), divide (2) and grow (1). One of the three words is in both domains.
    found = similarities({"cells": CELLS, "code": CODE})
    assert found.overlap == [[1, pytest.approx(1 / 3)], [pytest.approx(1 / 3), 1]]
    assert found.documents == [4, 4]


def test_jaccard_of_words_in_three_documents():
    # Words in at least three documents: {cells} in the first domain, {cells, divide, programs} in the second.
    assert similarities({"a": CELLS, "b": CELLS + CODE}).jaccard[0][1] == pytest.approx(1 / 3)
    assert similarities({"a": CELLS, "b": CODE}).jaccard == [[1, 0], [0, 1]]


def test_cross_loss_is_the_divergence_of_word_frequencies():
    words = ["cells", "divide", "eat", "grow", "mice", "programs", "run", "work"]
    cells = np.array([4, 2, 1, 1, 1, 0, 0, 0]) + SMOOTHING
    code = np.array([0, 2, 0, 1, 0, 4, 1, 1]) + SMOOTHING
    found = similarities({"cells": CELLS, "code": CODE}).cross_loss
    assert len(words) == len(cells)
    # Row: domain whose word frequencies are used for the prediction. Column: domain of the predicted text.
    assert found[0][1] == pytest.approx(entropy(code / code.sum(), cells / cells.sum()))
    assert found[1][0] == pytest.approx(entropy(cells / cells.sum(), code / code.sum()))
    assert [found[0][0], found[1][1]] == pytest.approx([0, 0])


def test_a_domain_without_words_has_no_similarity():
    found = similarities({"none": ["the of and"], "code": CODE})
    assert found.overlap[0][1] == 0
    assert found.jaccard[0][1] == 0
    assert math.isfinite(found.cross_loss[0][1])


class Decoder:
    def batch_decode(self, documents: list[list[int]], skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(f"word{token}" for token in tokens) for tokens in documents]


def test_samples_take_heldout_documents_first(tmp_path: Path):
    write_shard(tmp_path / "heldout-000000-000000.arrow", [[1], [2], [3]], 100, {})
    write_shard(tmp_path / "train-000000-000000.arrow", [[number] for number in range(10, 30)], 100, {})
    texts = sample_texts(tmp_path, Decoder(), 8)
    assert sorted(texts[:3]) == ["word1", "word2", "word3"]
    assert len(set(texts)) == 8
    assert sample_texts(tmp_path, Decoder(), 8) == texts
    assert len(sample_texts(tmp_path, Decoder(), 2)) == 2


def test_overlap_compares_samples_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of equal size are compared, so a long text is not more similar just because it has more words."""
    words = [f"w{number}" for number in range(1000)]
    texts = {
        "task": [" ".join(words[:100])],
        "long": [" ".join(words[950:] + words[:950])],
        "short": [" ".join(words[:100])],
    }
    monkeypatch.setattr(module, "_cross_losses", None)  # other matrices are not computed
    found = word_overlaps(texts)
    assert found["task"] == [pytest.approx(0.5), pytest.approx(1.0)]
    assert found["long"] == [pytest.approx(0.5), pytest.approx(0.5)]
