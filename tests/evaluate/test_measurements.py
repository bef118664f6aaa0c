"""Tests how results of evaluations are displayed."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from adapt.evaluate.compared_models import ModelsCompared
from adapt.evaluate.measurements import Estimate, Similar, TextLoss
from adapt.runner.record import read_result
from adapt.show.blocks import NONE, Cell, Table, TextBlock
from adapt.stage.export_model import Adapted
from adapt.stage.model_evaluation import Evaluated
from adapt.tuning.job_trial import TrialMeasured
from tests.show.report.fake_studies import Fake, loss_change, made_up

LOSS = np.array([[1.63, 1.32, 2.1], [1.34, 1.43, 2.78], [2.44, 2.23, 1.93]])
MODELS, DOMAINS = ["RoBERTa", "CS", "Reviews"], ["papers", "biomed", "reviews"]


def compared(**more: object) -> ModelsCompared:
    change = LOSS - LOSS[0]
    grids = {"loss": LOSS, "change": change}
    ends = {
        f"{name}_{end}": grid + side for name, grid in grids.items() for end, side in (("low", -0.03), ("high", 0.03))
    }
    values = {name: grid.tolist() for name, grid in (grids | ends).items()}
    return ModelsCompared(models=MODELS, domains=DOMAINS, documents=dict.fromkeys(DOMAINS, 100), **values, **more)


def tables_of(result: ModelsCompared | Similar, root: Path) -> dict[str, Table]:
    blocks = result.blocks(Fake(root).record("compare", "models"))
    return {block.title: block for block in blocks if isinstance(block, Table)}


def test_an_estimate_as_text() -> None:
    assert Estimate(3.2415, 3.2, 3.28).text(".2f") == "3.24 (3.20 to 3.28)"
    assert Estimate(-0.5).text("+.1f") == "-0.5"
    assert Estimate(-0.5, -0.7, -0.3).cell("+.1f") == Cell("-0.5", "-0.7 to -0.3")


def test_the_lowest_loss_of_a_column_is_darkest(tmp_path: Path) -> None:
    table = tables_of(compared(), tmp_path)["Loss on held-out text [nats per token]"]
    shades = np.array([[cell.shade for cell in row[1:]] for row in table.rows if not isinstance(row, str)])
    assert shades.argmax(0).tolist() == LOSS.argmin(axis=0).tolist()
    assert (shades.max(), shades.min()) == (1.0, 0.0)
    assert table.note.endswith(" Held-out documents: papers 100, biomed 100, reviews 100.")
    assert table.rows[0][1] == Cell("1.630", "1.600 to 1.660", shade=shades[0, 0])


def test_changes_are_against_the_first_model(tmp_path: Path) -> None:
    table = tables_of(compared(), tmp_path)["Loss minus that of RoBERTa [nats per token]"]
    assert [row[0] for row in table.rows] == MODELS[1:]
    assert table.rows[0][1] == Cell("-0.290", "-0.320 to -0.260")


def test_missing_figures_are_shown_as_a_dash(tmp_path: Path) -> None:
    found = compared(knn={"acl_arc": {"RoBERTa": None, "CS": 0.5, "Reviews": 0.4}}, knn_left_out={"acl_arc": 52})
    assert tables_of(found, tmp_path)["Accuracy of nearest neighbours"].rows == [["acl_arc", NONE, "50.0%", "40.0%"]]
    said = [block.text for block in found.blocks(Fake(tmp_path).record("compare", "x")) if isinstance(block, TextBlock)]
    assert "acl_arc: 52 test texts that are also in train are left out." in said


def test_losses_per_byte_have_more_digits(tmp_path: Path) -> None:
    table = tables_of(compared(unit="bits per byte"), tmp_path)["Loss on held-out text [bits per byte]"]
    assert isinstance(table.rows[0][1], Cell)
    assert table.rows[0][1].text == "1.6300"


def test_similarity_has_a_heatmap_for_each_measure(tmp_path: Path) -> None:
    overlap, cross = [[1, 0.41], [0.41, 1]], [[0, 0.9], [0.8, 0]]
    found = tables_of(Similar(["cs", "bio"], [9, 9], overlap, overlap, cross), tmp_path)
    assert list(found) == ["Shared frequent words", "Jaccard index of all words", "Cross loss [nats per word]"]
    assert found["Shared frequent words"].rows[0][2] == Cell("41%", shade=0.41)
    assert found["Cross loss [nats per word]"].rows[0][1] == Cell("0.00", shade=1.0)


def said_by(result: ModelsCompared | Similar, root: Path) -> list[str]:
    blocks = result.blocks(Fake(root).record("compare", "models"))
    return [block.text for block in blocks if isinstance(block, TextBlock) and block.is_summary]


def test_each_text_has_a_sentence_with_its_best_model(tmp_path: Path) -> None:
    close = compared()
    close.change_low[1][0], close.change_high[1][0] = -0.6, 0.02
    assert said_by(close, tmp_path)[2:] == [
        "On papers, CS has the lowest held-out loss: 1.34 nats per token, which is not measurably different from 1.63"
        " for RoBERTa (95% interval of the difference: -0.60 to +0.02).",
        "On biomed, no model has a lower held-out loss than RoBERTa (1.32 nats per token).",
        "On reviews, Reviews has the lowest held-out loss: 1.93 nats per token, compared with 2.10 for RoBERTa (95%"
        " interval of the difference: -0.20 to -0.14).",
    ]


def test_each_model_has_a_verdict_against_the_first(tmp_path: Path) -> None:
    found = compared(knn_change={"acl_arc": {"CS": Estimate(0.1, 0.02, 0.2)}})
    first, second = said_by(found, tmp_path)[:2]
    assert first.startswith("Verdict: CS is better than RoBERTa on papers and features for acl_arc, but worse on")
    assert second.startswith("Verdict: Reviews is better than RoBERTa on reviews, but worse on")


def test_the_summary_names_the_most_and_least_similar_domains(tmp_path: Path) -> None:
    shared = [[1, 0.41, 0.2], [0.41, 1, 0.12], [0.2, 0.12, 1]]
    assert said_by(Similar(["cs", "bio", "news"], [9, 9, 9], shared, shared, shared), tmp_path) == [
        "Most words are shared by cs and bio (41% of their 10,000 most frequent words), fewest by bio and news (12% of"
        " their 10,000 most frequent words)."
    ]
    assert said_by(Similar(["cs"], [9], [[1]], [[1]], [[0]]), tmp_path) == []


def test_records_in_nats_per_byte_are_read_in_bits(tmp_path: Path) -> None:
    """Older records store nats per byte, which are converted when they are read: 1 nat is 1.442695 bits."""
    fake = Fake(tmp_path)
    earlier = {"per_byte_before": 1.0, "per_byte_after": 0.5}
    losses = asdict(loss_change("domain", 4.0, 3.0))
    losses = {name: value for name, value in losses.items() if not name.startswith("bits")} | earlier
    metrics = asdict(made_up(Adapted, losses={})) | {"losses": {"domain": losses}}
    read = read_result(Adapted, fake.record("export", "old", metrics=metrics)).losses["domain"]
    assert (read.bits_per_byte_before, read.bits_per_byte_after) == pytest.approx((1.442695, 0.7213475))

    text = {"loss": 3.0, "documents": 9, "predictions": 90, "overlap": None, "loss_per_byte": 2.0}
    evaluated = read_result(Evaluated, fake.record("evaluate", "old", metrics={"texts": {"domain": text}}))
    assert evaluated.texts["domain"] == TextLoss(3.0, 9, 90, None, bits_per_byte=pytest.approx(2.88539))

    old = asdict(compared()) | {"unit": "byte"}
    of_bytes = read_result(ModelsCompared, fake.record("compare", "old", metrics=old))
    assert of_bytes.unit == "bits per byte"
    assert np.array(of_bytes.loss) == pytest.approx(LOSS * 1.442695)
    assert np.array(of_bytes.change_low) == pytest.approx((LOSS - LOSS[0] - 0.03) * 1.442695)
    of_tokens = read_result(ModelsCompared, fake.record("compare", "older", metrics=old | {"unit": "token"}))
    assert of_tokens == compared()

    figure = {"value": 1.0, "low": None, "high": 2.0}
    figures = {"losses.domain.per_byte_after": figure, "losses.domain.after": figure}
    trial = read_result(TrialMeasured, fake.record("trial", "old", metrics={"figures": figures}))
    assert trial.figures["losses.domain.bits_per_byte_after"].high == pytest.approx(2.88539)
    assert trial.figures["losses.domain.after"] == Estimate(1.0, None, 2.0)
