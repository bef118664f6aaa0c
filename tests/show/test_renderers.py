"""Tables fit into narrow terminals without broken words or missing columns.

Sentences that sum up a result come first.
"""

from pathlib import Path

import pytest

from adapt.show.blocks import Cell, Section, Table, TextBlock, summary
from adapt.show.renderers import render_html, render_markdown, render_notebook, render_text, show_blocks
from tests.pseudo_terminal import sent_to_terminal

LOSSES = Table(
    ["text", "loss before", "loss after", "change", "bits per byte before", "bits per byte after"],
    [["your domain", *(Cell("-4.017", "-4.195 to -3.872") for _ in range(3)), "2.449", "1.228"]],
    "demo: loss on held-out text [nats per token]",
    "Lower is better.",
)
WIDE = Table(["model", *(f"domain {number} of many" for number in range(12))], [["base", *["3.141"] * 12]], "Losses")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("table", [LOSSES, WIDE])
def test_tables_fit_and_keep_their_words(table: Table, width: int) -> None:
    text = render_text([table], width)
    assert max(map(len, text.splitlines())) <= width
    words = [word for heading in table.header for word in heading.split()]
    said = text.replace("┃", " ").replace("│", " ").split()
    assert all(word in said for word in words)
    assert said.count("3.141") == (12 if table is WIDE else 0)


def test_columns_that_do_not_fit_follow_in_a_further_table_with_the_names_of_rows() -> None:
    text = render_text([WIDE], 60)
    assert text.count("│ base ") > 1
    assert text.count("Losses") == 1


def test_small_lines_are_in_brackets_where_there_is_room() -> None:
    assert "-4.017 (-4.195 to -3.872)" in render_text([LOSSES], 160)
    assert "-4.017 │" in render_text([LOSSES], 100).replace("  ", "")


def test_paths_are_folded_and_not_cut() -> None:
    path = "/a/path/that/is/much/longer/than/the/terminal/is/wide/stage.json"
    text = render_text([Table(["stage", "folder"], [["export", path]], words=True)], 40)
    pieces = [line.split("│")[2].strip() for line in text.splitlines() if "│" in line]
    assert "".join(pieces) == path


def test_summaries_are_emphasised_on_terminals() -> None:
    blocks = summary("Loss fell.", "", "Nothing was forgotten.")
    assert [block.text for block in blocks if isinstance(block, TextBlock)] == ["Loss fell.", "Nothing was forgotten."]
    assert render_text(blocks) == "Loss fell.\nNothing was forgotten."
    assert '<p class="summary">Loss fell.</p>' in render_html("x", "", [Section("Part", blocks)])
    assert "p class=&quot;summary&quot;" in render_notebook(blocks)
    assert "Loss fell.\n\nNothing was" in render_markdown("x", "", [Section("Part", blocks)])


def test_a_verdict_is_shown_again_below_the_details(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = TextBlock("Verdict: better.", is_summary=True, is_verdict=True)
    show_blocks([verdict, *summary("Loss fell."), LOSSES, LOSSES, TextBlock("Model: here")])
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Verdict: better.", "Loss fell."]
    assert lines[-2:] == ["Verdict: better.", "Model: here"]
    assert lines.count("Verdict: better.") == 2
    show_blocks([verdict, TextBlock("Model: here")])  # without a table, the verdict stays visible and is not repeated
    assert capsys.readouterr().err == "Verdict: better.\nModel: here\n"


PROGRAM = """
from adapt.show.blocks import Table, summary
from adapt.show.renderers import show_blocks
sentence = "Held-out loss on your domain fell from 8.11 to 3.61 nats per token (95% interval: -4.55 to -4.44)."
show_blocks([*summary(sentence), Table(["text", "loss"], [["your domain", "3.61"]], note="Lower is better. " * 9)])
"""


def test_sentences_on_a_terminal_end_their_lines_between_words(tmp_path: Path) -> None:
    sent = sent_to_terminal(PROGRAM, columns=60)
    lines = [line for line in sent.replace("\r", "").split("\n") if line and "\x1b" not in line]
    assert max(map(len, lines)) <= 60
    assert lines[0] == "Held-out loss on your domain fell from 8.11 to 3.61 nats per"


def test_markdown_shows_entities_as_they_are_and_keeps_rows_on_one_line() -> None:
    table = Table(["a\rb"], [["x &lt;b&gt;\r\ny"]])
    text = render_markdown("n\r# m", "", [Section("Part", [table])])
    assert "\r" not in text
    assert "| x &amp;lt;b&amp;gt;  y |" in text
    assert text.startswith("# n \\# m\n")
