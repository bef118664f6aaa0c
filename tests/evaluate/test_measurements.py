"""What results of evaluations show of themselves."""

from pathlib import Path

import numpy as np

from adapt.evaluate.measurements import Estimate, ModelsCompared, Similar
from adapt.show.blocks import NONE, Cell, Table, TextBlock
from tests.show.report.fake_studies import Fake

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
    table = tables_of(compared(), tmp_path)["Loss on held-out text"]
    shades = np.array([[cell.shade for cell in row[1:]] for row in table.rows if not isinstance(row, str)])
    assert shades.argmax(0).tolist() == LOSS.argmin(axis=0).tolist()
    assert (shades.max(), shades.min()) == (1.0, 0.0)
    assert table.rows[0][1] == Cell("1.630", "1.600 to 1.660", shade=shades[0, 0])


def test_changes_are_against_the_first_model(tmp_path: Path) -> None:
    table = tables_of(compared(), tmp_path)["Change of the loss against RoBERTa"]
    assert [row[0] for row in table.rows] == MODELS[1:]
    assert table.rows[0][1] == Cell("-0.290", "-0.320 to -0.260")


def test_what_could_not_be_measured_is_a_dash(tmp_path: Path) -> None:
    found = compared(knn={"acl_arc": {"RoBERTa": None, "CS": 0.5, "Reviews": 0.4}}, knn_left_out={"acl_arc": 52})
    assert tables_of(found, tmp_path)["Nearest neighbours"].rows == [["acl_arc", NONE, "50.0%", "40.0%"]]
    said = [block.text for block in found.blocks(Fake(tmp_path).record("compare", "x")) if isinstance(block, TextBlock)]
    assert said[0] == "acl_arc: 52 test texts that are also in train are left out"


def test_losses_per_byte_have_more_digits(tmp_path: Path) -> None:
    table = tables_of(compared(unit="byte"), tmp_path)["Loss on held-out text"]
    assert isinstance(table.rows[0][1], Cell)
    assert table.rows[0][1].text == "1.6300"
    assert table.note.startswith("Nats per byte ")


def test_similarity_has_a_heatmap_for_each_measure(tmp_path: Path) -> None:
    overlap, cross = [[1, 0.41], [0.41, 1]], [[0, 0.9], [0.8, 0]]
    found = tables_of(Similar(["cs", "bio"], [9, 9], overlap, overlap, cross), tmp_path)
    assert list(found) == ["Shared words", "Jaccard index", "Cross loss"]
    assert found["Shared words"].rows[0][2] == Cell("41%", shade=0.41)
    assert found["Cross loss"].rows[0][1] == Cell("0.00", shade=1.0)
