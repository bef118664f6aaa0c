"""Finds the code blocks of a page, and reads from the page how each block is tested.

- A block with `title="my.yaml"` is a file. It is written into the page's folder. If it is YAML, its fields are checked.
- A `yaml` block without a title is a fragment: it must parse, and its fields must exist.
- `sh` and `python` blocks run in the order of the page. `text`, `json` and `console` blocks show output and do not run.
- `<!-- test: plan -->` on the line above a block: jobs of the block's commands and functions are only planned.
- `<!-- test: none, REASON -->` on the line above a block: the block is not run. A block with a title is still written.
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
OUTPUT = {"text", "json", "console"}
RUN = {"sh", "python"}
MARK = re.compile(r"<!--\s*test:\s*(plan|none)\s*(?:,\s*(.*?))?\s*-->")
FENCE = re.compile(r"^(?P<indent> *)```(?P<head>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class CodeBlock:
    """A code block of a page."""

    line: int
    """Line of the page on which the block begins."""
    language: str
    text: str
    title: str = ""
    """Name of the file that the block shows, or empty if the block is not a file."""
    mark: str = ""
    """The test mark of the block: `plan`, `none` or empty."""
    reason: str = ""
    """Reason why the block is not run."""

    @property
    def problem(self) -> str:
        """Describes what is wrong with the block's language or test mark. The text is empty if both are valid."""
        if self.mark == "none" and not self.reason:
            return "`test: none` needs a reason: <!-- test: none, needs a cluster -->"
        if not self.language:
            return "the block has no language; output is `text`"
        if not self.title and self.mark != "none" and self.language not in {*OUTPUT, *RUN, "yaml"}:
            return f"nothing can test a block of {self.language}: give it a title, or mark it with `test: none, REASON`"
        return ""


def blocks_of(page: str) -> list[CodeBlock]:
    """Returns the code blocks of a page, in order.

    Args:
        page: text of the page.
    """
    found = []
    for match in FENCE.finditer(page):
        above = page[: match.start()].rstrip("\n").rpartition("\n")[2]
        mark = MARK.search(above)
        language, _, further = match["head"].strip().partition(" ")
        title = TITLE.search(further)
        found.append(
            CodeBlock(
                line=page.count("\n", 0, match.start()) + 1,
                language=language,
                text=textwrap.dedent(match["text"]),
                title=title[1] if title else "",
                mark=mark[1] if mark else "",
                reason=(mark[2] or "") if mark else "",
            )
        )
    return found


def tested_pages() -> list[str]:
    """Lists the pages whose code blocks are tested, relative to docs/."""
    more = [DOCS / "develop" / "extending.md", DOCS / "reference" / "chain-files.md"]
    pages = [*DOCS.glob("start/*.md"), *DOCS.glob("guide/*.md"), *more]
    return sorted(page.relative_to(DOCS).as_posix() for page in pages)
