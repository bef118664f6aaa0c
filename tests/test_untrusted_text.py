"""Nothing in a document, label or name is interpreted: not by a terminal, a model card, a report or a chat."""

import re
from pathlib import Path

import pytest

from adapt.config import NotifyConfig
from adapt.model.model_card import card_code, card_text, table
from adapt.runner.notifications import body
from adapt.show.blocks import Section, Table, TextBlock
from adapt.show.renderers import render_html, render_markdown, render_text, show_blocks
from adapt.terminal.console import log, printable

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31mred\x08\r\x00"
"""Sequences that set a terminal's title, clear its screen, change its colour, and overwrite text."""
MARKS = "<img src=x onerror=alert(1)> [link](http://host) ![](http://host/p.png) |a| `b` \\<i>"
HTML = re.compile(r"(?<!\\)(?:\\\\)*<")
"""A `<` that Markdown would read as the start of HTML, because no backslash escapes it."""
LINK = re.compile(r"(?<!\\)(?:\\\\)*\]")


def test_control_characters_do_not_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [TextBlock(f"text {ESCAPES}"), Table([f"head {ESCAPES}"], [[f"cell {ESCAPES}"]], title=f"title {ESCAPES}")]
    log(f"message {ESCAPES}")
    show_blocks(blocks)
    for written in (capsys.readouterr().err, render_text(blocks)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)
        assert r"\x1b" in written


def test_lines_and_tabs_and_other_scripts_stay() -> None:
    text = "a\tb\n\u00e9\u4e2d\u0439 \U0001f600"
    assert printable(text) == text


def test_markdown_of_cards_has_no_html_and_no_links_of_users() -> None:
    card = "\n".join([f"# {card_text(MARKS)}", table(("name", "value"), [(MARKS, MARKS)])])
    assert not HTML.search(card)
    assert not LINK.search(card)
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {3}


def test_code_in_a_card_stays_on_its_line() -> None:
    assert card_code("a`<script>`\n# b") == "`a'<script>' # b`"


def test_reports_show_marks_as_text() -> None:
    sections = [Section("title", [TextBlock(MARKS), Table([MARKS], [[MARKS]])])]
    assert "<img" not in render_html(MARKS, MARKS, sections)
    assert not HTML.search(render_markdown(MARKS, MARKS, sections))


def test_a_message_in_slack_mentions_nobody() -> None:
    settings = NotifyConfig(webhook="HOOK", form="slack")
    text = body(settings, "finish", "dapt <!channel>", "see <http://host|here> & there", {})["text"]
    assert text == "*dontstop dapt &lt;!channel&gt;* finished. see &lt;http://host|here&gt; &amp; there"


@pytest.mark.parametrize("name", ["../outside", "a/b", "..", "/etc"])
def test_a_name_cannot_lead_out_of_the_storage_root(name: str, tmp_path: Path) -> None:
    from adapt.parse import parse
    from adapt.support.errors import ConfigError

    with pytest.raises(ConfigError, match="name"):
        parse([f"--name={name}", f"--storage.root={tmp_path}"], "jobs/dapt.py")
