"""Tests the tables of sequential studies on the science pages, and that the pages show the recorded results."""

import json
import re
from pathlib import Path

import pytest

from adapt.show.blocks import Cell
from benchmarks.study_table import losses, markdown, table

SCIENCE = Path(__file__).parents[1] / "docs" / "science"
SHOWN = {
    name: text.strip()
    for page in SCIENCE.glob("*.md")
    for name, text in re.findall(r"<!-- (\w+): begin -->(.*?)<!-- \1: end -->", page.read_text(), re.DOTALL)
}
SEEN = {"difference": 0.02, "low": 0.01, "high": 0.03, "error": 0.005, "p": 0.0312, "level": 0.05}
LOOK = {"level": 0.05, "recipes": 1, "significant": 1, "equal": 0, "spending": "pocock", "look": 1, "seeds": [2, 4]}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_a_page_shows_the_recorded_results(name: str) -> None:
    assert SHOWN[name] == markdown(json.loads((SCIENCE / "data" / f"{name}.json").read_text()))


def test_scores_are_in_points_and_losses_in_nats() -> None:
    study = {
        "baseline": "plain",
        "scores": {"toy": {"plain": {"1": 0.5, "2": 0.6}, "replay": {"1": 0.52, "2": 0.62}}},
        "figures": {
            "plain": {"1": {"loss_average": 4.0}, "2": {"loss_average": 4.5}},
            "replay": {"1": {"loss_average": 4.02}, "2": {"loss_average": 4.52, "average": 0.5}},
        },
        "looks": [
            LOOK | {"row": "toy", "figure": "", "margin": 0.01, "found": {"replay": SEEN | {"conclusion": "better"}}},
            LOOK
            | {"row": "loss_average", "figure": "loss_average", "margin": 0.02}
            | {"found": {"replay": SEEN | {"conclusion": "open", "p": None, "low": None, "high": None}}},
        ],
    }
    assert table(study).rows == [
        ["toy", "plain", "55.0", "", "", ""],
        ["", "replay", "57.0", Cell("+2.0", "+1.0 to +3.0"), ".031", "better, 2 seeds"],
        ["average loss", "plain", "4.250", "", "", ""],
        ["", "replay", "4.270", Cell("+0.020", ""), "\N{EN DASH}", "undecided, 2 seeds"],
    ]


def test_losses_before_are_those_of_the_base_model() -> None:
    domain, general = {"before": 5.0, "after": 4.25}, {"before": 4.5, "after": 4.75}
    trained = {"tokens": 303_104, "device_hours": 0.01, "domain": domain, "general": general}
    found = losses({"losses": {"dapt · 0.3M": trained}})
    assert found
    assert found.rows == [["base", "0", "0", "5.000", "4.500"], ["dapt · 0.3M", "0.3 M", "0.6", "4.250", "4.750"]]
    assert losses({"losses": {}}) is None
    other = {**trained, "domain": {"before": 5.1, "after": 4.25}}
    assert losses({"losses": {"dapt · 0.3M": trained, "dapt · other text": other}}) is None
