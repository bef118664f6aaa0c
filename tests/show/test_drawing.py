"""Figures take their colours from the style sheet of the page."""

import re
from xml.etree import ElementTree

from adapt.show.drawing import LONGEST, SERIES, canvas, color, short, style, svg


def drawn(name: str, label: str = "score") -> str:
    with style():
        figure, axes = canvas(3, 2)
        for place in range(SERIES):
            axes.plot([0, 1], [0, place], color=color(place), marker="o", markerfacecolor="none")
        axes.set_ylabel(label)
        return svg(figure, name)


def test_colours_are_variables():
    text = drawn("a")
    ElementTree.fromstring(text)
    assert {f"var(--series-{place})" for place in range(SERIES)} <= set(re.findall(r"var\(--series-\d\)", text))
    assert "var(--ink)" in text
    assert re.findall(r"(?:fill|stroke): ?#[0-9a-f]{3,6}", text) == []


def test_ids_of_two_figures_differ():
    ids = [set(re.findall(r'id="([^"]+)"', drawn(name))) for name in ("a", "b")]
    assert not ids[0] & ids[1]


def test_drawings_are_reproducible():
    assert drawn("a") == drawn("a")


def test_text_stays_text():
    text = "<b>$x$ & -->"
    root = ElementTree.fromstring(drawn("a", text))
    assert text in ["".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")]


def test_long_names_are_shortened():
    assert short("DAPT+TAPT") == "DAPT+TAPT"
    assert len(short("R" * 60)) == LONGEST
