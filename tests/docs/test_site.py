"""The documentation site: its navigation lists every page, and the pages together are short."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.docs.blocks import DOCS, ROOT

MOST_WORDS = 30_000
"""Maximum number of words of the pages in guide, start, develop and science together, without generated tables."""
READ = ("start", "guide", "science", "develop")
GENERATED = "reference/"
"""Folder of pages that need not exist before the site is built, because the build generates some of them."""
TABLE = re.compile(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", re.DOTALL)
"""A table that a script writes into a page."""


class Loader(yaml.SafeLoader):
    """Loads mkdocs.yml, which may refer to Python functions."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def site() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)
    return found


def pages_in(nav: Any) -> Iterator[str]:
    """Yields the pages of a navigation, including the pages in its sections."""
    if isinstance(nav, str):
        yield nav
    for entry in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from pages_in(entry)


def test_every_page_is_in_the_navigation_once_and_nothing_else_is() -> None:
    named = [page for page in pages_in(site()["nav"]) if page.endswith((".md", ".ipynb"))]
    assert len(named) == len({*named})
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert there <= {*named}
    assert {page for page in {*named} - there if not page.startswith(GENERATED)} == set()


def test_the_pages_are_short_enough_to_be_read() -> None:
    pages = [page for folder in READ for page in (DOCS / folder).rglob("*.md")]
    words = {page: len(TABLE.sub("", page.read_text("utf-8")).split()) for page in pages}
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda pair: -pair[1])


def test_links_to_other_hosts_are_well_formed() -> None:
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for link in re.findall(r"\]\(<?(https?:[^)>\s]*)", page.read_text("utf-8")):
            assert re.fullmatch(
                r"https://[\w-]+(\.[\w-]+)+(/[^\s]*)?|http://(127\.0\.0\.1|localhost)(:\d+)?/?.*", link
            ), f"{page.name}: {link}"
