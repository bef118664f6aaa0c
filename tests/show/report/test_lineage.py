"""Tests the report's graph of stages, and the drawing of the graph."""

from itertools import combinations
from xml.etree import ElementTree

import pytest

from adapt.show.report.study import Entry, Study, draw_lineage, lineage
from tests.show.report.fake_studies import Fake, finished


def node(nodes, kind: str, label: str):
    return next(each for each in nodes if (each.kind, each.label) == (kind, label))


@pytest.fixture(scope="module")
def nodes(study):
    return lineage(study)


def test_runs_of_a_recipe_are_one_node(nodes):
    assert len(node(nodes, "finetune", "DAPT").keys) == 15
    assert len(node(nodes, "task", "").keys) == 3
    assert len(node(nodes, "export", "TAPT").keys) == 3


def test_models_lead_from_training_to_training_to_fine_tuning(nodes):
    tuned, both, dapt = (
        node(nodes, *at) for at in (("finetune", "DAPT+TAPT"), ("export", "DAPT+TAPT"), ("export", "dapt"))
    )
    assert both in tuned.inputs
    (training,) = both.inputs
    assert training.kind == "train"
    assert dapt in training.inputs
    assert [each.kind for each in node(nodes, "finetune", "RoBERTa").inputs] == ["task"]


def test_columns_grow_along_arrows(nodes):
    for each in nodes:
        assert all(one.column < each.column for one in each.inputs)


def test_boxes_do_not_overlap_and_lie_inside(nodes):
    svg = ElementTree.fromstring(draw_lineage(nodes))
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    boxes = [
        [float(r.attrib[k]) for k in ("x", "y", "width", "height")]
        for r in svg.iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert len(boxes) == len(nodes)
    for x, y, w, h in boxes:
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
    for (x, y, w, h), (x2, y2, w2, h2) in combinations(boxes, 2):
        assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_arrows_end_at_boxes(nodes):
    svg = ElementTree.fromstring(draw_lineage(nodes))
    space = "{http://www.w3.org/2000/svg}"
    edges = {(float(r.attrib["x"]), float(r.attrib["y"]) + 19) for r in svg.iter(f"{space}rect")}
    ends = [path.attrib["d"].split()[-2:] for path in svg.iter(f"{space}path") if path.get("class") == "arrow"]
    assert len(ends) == sum(len(each.inputs) for each in nodes)
    assert all(any(abs(float(x) - a) <= 1 and abs(float(y) - b) <= 1 for a, b in edges) for x, y in ends)


def test_stages_whose_folder_is_gone_are_drawn_by_their_kind(tmp_path):
    fake = Fake(tmp_path)
    run = fake.finetune("base", fake.task("acl_arc"), 0, 0.7, 0)
    for file in (tmp_path / "task").rglob("stage.json"):
        file.unlink()
    nodes = lineage(Study("gone", "base", [Entry("finetune", "finetune", {"recipe": "base"}, finished(run))]))
    assert [(each.kind, each.label) for each in nodes] == [("task", ""), ("finetune", "base")]


def test_nothing_gives_no_graph():
    assert lineage(Study("none", "base", [])) == []
