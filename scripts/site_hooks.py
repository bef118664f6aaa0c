"""Defines the hooks that mkdocs calls while it builds the site: they add the generated reference and write llms.txt."""

import logging
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []

for _name in ("mkdocs", "mkdocs.plugins"):  # strict mode only counts visible warnings, which --quiet hides
    if logging.getLogger(_name).getEffectiveLevel() > logging.WARNING:
        logging.getLogger(_name).setLevel(logging.WARNING)

_DESCRIPTIONS: dict[str, str] = {}
"""First sentence of each page, keyed by the address of the page."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are generated from the code."""
    from scripts.reference import pages

    for place, content in pages().items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> None:
    """Stores the first sentence of a page for llms.txt."""
    body = re.sub(r"^#[^\n]*$|<!--.*?-->|^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    paragraphs = (part.strip() for part in body.split("\n\n"))
    first = next((part for part in paragraphs if re.match(r"[\w*`\[]", part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*", r"\1", " ".join(first.split()))
    sentence = re.match(r".*?[.:](?= |$)", plain)
    _DESCRIPTIONS[page.url] = (sentence[0] if sentence else plain).rstrip(":")


def on_post_build(config: Any) -> None:
    """Writes llms.txt: each page with its address and its first sentence, for language models."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]

    def walk(items: Any) -> None:
        for item in items:
            if item.is_section:
                lines.extend(["", f"## {item.title}", ""])
                walk(item.children)
            elif item.is_page:
                about = _DESCRIPTIONS.get(item.url, "")
                lines.append(f"- [{item.title}]({item.url or 'index.html'}){f': {about}' if about else ''}")

    walk(_NAV[0].items)
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


_NAV: list[Any] = []


def on_nav(nav: Any, config: Any, files: Files) -> Any:
    """Stores the navigation for llms.txt."""
    _NAV[:] = [nav]
    return nav
