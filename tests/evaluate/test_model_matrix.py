"""Tests the matrix of models and domains: its losses, its intervals and refused inputs."""

import json
from pathlib import Path

import numpy as np
import pytest

from adapt.evaluate.compared_models import ModelsCompared
from adapt.evaluate.measure_model import HITS_FILE, LOSSES_FILE
from adapt.evaluate.model_matrix import FILE, PICTURE, accuracy_changes, compare_models
from adapt.support.errors import DataError

DOMAINS = ("cells", "general")


def evaluation(folder: Path, losses: dict[str, np.ndarray], counts: np.ndarray) -> Path:
    folder.mkdir()
    values = {name: {"losses": each.tolist(), "counts": counts.tolist()} for name, each in losses.items()}
    (folder / LOSSES_FILE).write_text(json.dumps(values))
    return folder


@pytest.fixture
def evaluations(tmp_path: Path) -> dict[str, Path]:
    """Evaluations of two models on 40 documents per domain, keyed by model.

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
    # The difference is the same in all documents, so its interval has no width. The intervals of the losses have.
    np.testing.assert_allclose(found.change_low, found.change_high, atol=1e-9)
    assert (np.array(found.loss_low) + 0.1 < found.loss).all()
    assert (np.array(found.loss_high) - 0.1 > found.loss).all()


def test_accuracies_are_compared_text_by_text(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    base = draw.integers(0, 2, 200)
    other = np.where(draw.random(200) < 0.3, 1, base)  # right more often
    folders = {"base": tmp_path / "one", "DAPT": tmp_path / "two"}
    for folder, hits in zip(folders.values(), (base, other), strict=True):
        folder.mkdir()
        (folder / HITS_FILE).write_text(json.dumps({"intent": hits.tolist(), "empty": []}))
    found = accuracy_changes(folders, 2000)["intent"]["DAPT"]
    assert found.value == pytest.approx(other.mean() - base.mean())
    error = (other - base).std() / 200**0.5
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.01)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.01)
    (folders["DAPT"] / HITS_FILE).unlink()  # as for results of earlier versions
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
