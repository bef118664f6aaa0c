"""The generated reference describes everything that users may set. The built site loads nothing from other hosts."""

import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest

import dontstop
from adapt.cli.main import COMMANDS
from adapt.config import Config
from adapt.config.fields import hints_of
from adapt.corpus.cleaning.cleaning_blocks import BLOCKS
from adapt.job import JOBS
from adapt.merge.table import MERGERS
from adapt.objective.table import OBJECTIVES
from adapt.parse.keys import OPTIONS, option_sections
from adapt.support import paths
from scripts import reference
from tests.docs.blocks import ROOT
from tests.docs.test_site import pages_in, site


@cache
def pages() -> dict[str, str]:
    return reference.pages()


def anchors() -> set[str]:
    """Returns the names of the fields that have an entry in the reference."""
    return {name for text in pages().values() for name in re.findall(r"^#### .*\{ #(\S+) \}$", text, re.MULTILINE)}


def test_every_field_has_an_entry() -> None:
    hints = hints_of(Config)
    sections = {name: hint for name, hint in hints.items() if is_dataclass(hint)} | option_sections()
    named = {f"{section}.{field.name}" for section, kind in sections.items() for field in fields(kind)}
    single = hints.keys() - sections.keys() - {*OPTIONS}
    assert named | single <= anchors()


def test_every_section_says_which_jobs_use_it() -> None:
    sections = {name for name, hint in hints_of(Config).items() if is_dataclass(hint)}
    assert sections == {section for _, of in reference.FIELD_PAGES.values() for section in of}
    assert sections <= reference.USED_BY.keys()
    jobs = {job for used in reference.USED_BY.values() for job in used}
    assert jobs == {*JOBS, "dontstop tune"}


def test_every_kind_command_and_result_is_named() -> None:
    for place, names in {
        "reference/cleaning.md": BLOCKS,
        "reference/kinds.md": [*OBJECTIVES, *MERGERS],
        "reference/commands.md": [*JOBS, *COMMANDS],
        "reference/python-api.md": [name for name in dontstop.__all__ if not name.startswith("_")],
    }.items():
        assert [name for name in names if not re.search(rf"\b{name}\b", pages()[place])] == []
    jobs = {job.partition(" ")[0] for job in reference.RESULTS}
    assert jobs == {*JOBS}


def test_units_defaults_and_ranges_are_shown() -> None:
    text = pages()["reference/fields-text.md"]
    entry = text.split("#### `corpus.max_record_mib`")[1].split("####")[0]
    assert "`int > 0` · default `32` · in MiB" in entry
    assert "[MiB]" not in entry
    entry = pages()["reference/fields-model.md"].split("#### `training.micro_batch`")[1].split("####")[0]
    assert "*execution*" in entry


def test_types_of_results_are_those_that_their_module_imports() -> None:
    text = pages()["reference/records.md"]
    assert "| `losses` | `dict['domain' or 'general', LossChange]` ([LossChange](#LossChange)) |" in text
    assert "| `checked` | `'holds' or 'does not hold' or 'does not matter' or 'undecided' or None` |" in text
    assert "{ #SourceShare }" in text
    assert "{ #Text }" not in text


def test_recipes_and_search_spaces_are_listed() -> None:
    text = pages()["reference/commands.md"]
    for name in [*paths.recipes(), *paths.spaces()]:
        assert f"| `{name}` |" in text


@pytest.mark.slow
@pytest.mark.heavy
def test_the_site_is_built_and_needs_no_other_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = re.compile(r"""(?:<(?:script|img|iframe|link)\b[^>]*(?:src|href)=|@import |url\()["']?(https?:[^"')]*)""")
    for file in [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]:
        text = file.read_text("utf-8")
        assert loaded.findall(text) == [], file.name
        assert "<p>| " not in text, f"{file.name}: a table with a gap is shown as text"
    listed = re.findall(r"^- \[.*?\]\((.*?)\)", (tmp_path / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert {*listed} == {page.replace(".md", ".html") for page in pages_in(site()["nav"])}
    # the search of pages that are opened as files needs this index
    assert (tmp_path / "search" / "search_index.js").is_file()
