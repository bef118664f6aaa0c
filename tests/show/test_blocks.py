"""Tests that tables without rows are not shown. Blocks that contain only such tables are not shown either."""

import pytest

from adapt.show.blocks import Findings, Folded, Section, Table, TextBlock, filled
from adapt.show.renderers import render_html, render_markdown

EMPTY = Table(["text", "before"], [], "Losses", "a note")
FULL = Table(["text", "before"], [["domain", "3.1"]], "Others")


def test_blocks_without_content_are_left_out() -> None:
    text = TextBlock("words")
    blocks = [EMPTY, Folded("More", [EMPTY, Findings([])]), Folded("Less", [EMPTY, FULL]), text]
    assert filled(blocks) == [Folded("Less", [FULL]), text]


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_no_renderer_shows_an_empty_table(render) -> None:  # type: ignore[no-untyped-def]
    shown = render("study", "", [Section("Part", [EMPTY, FULL])])
    assert "Losses" not in shown
    assert "a note" not in shown
    assert "Others" in shown
