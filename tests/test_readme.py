"""Tests that README.md is short, names only things that exist, and has the same example as the notebook."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from adapt.api import configuration
from adapt.chain.chain_file import VERBS as LOCAL_VERBS
from adapt.cli.main import COMMANDS
from adapt.config import flat
from adapt.config.job_config import DAPT
from adapt.job import JOBS
from adapt.merge.table import MERGERS
from adapt.method.table import METHODS
from adapt.model.architecture import PATTERNS
from adapt.select.table import SELECTIONS
from adapt.submit.submit_order import VERBS
from adapt.support.paths import recipes, spaces

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "README.md").read_text("utf-8")
MOST_WORDS = 600
CODE = re.compile(r"^```sh\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
COMMANDS_NAMED = sorted(
    {line for found in CODE.findall(PAGE) for line in "\n".join(found).splitlines() if line.startswith("dontstop ")}
)


def block(kind: str) -> str:
    match = re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert match
    return match[1]


def example() -> dict[str, Any]:
    """Returns the arguments of the only function call in README.md's Python block."""
    calls = [node for node in ast.walk(ast.parse(block("python"))) if isinstance(node, ast.Call)]
    call = next(call for call in calls if ast.unparse(call.func) == "dontstop.dapt")
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


def row(head: str) -> set[str]:
    match = re.search(rf"^\| {head} \| (.*) \|$", PAGE, re.MULTILINE)
    assert match
    return set(re.findall(r"`(\w+)`", match[1]))


def test_the_readme_is_short() -> None:
    assert len(PAGE.split()) <= MOST_WORDS


@pytest.mark.parametrize("command", COMMANDS_NAMED)
def test_its_commands_exist(command: str) -> None:
    assert len(COMMANDS_NAMED) > 10
    _, name, *rest = command.split()
    if name == "JOB":
        return
    assert name in {*JOBS, *COMMANDS}
    if name == "chain":
        assert rest[0] in {*LOCAL_VERBS, *VERBS, "status", "logs"}
        assert rest[1].startswith("--") or rest[1] in recipes()
    if "--space" in rest:
        assert rest[rest.index("--space") + 1] in spaces()


def test_it_has_both_commands_for_a_clone() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = re.findall(r"^make (\w+)", PAGE, re.MULTILINE)
    assert named == ["demo", "test"]
    assert set(named) <= set(targets)


def test_its_links_work_and_cover_every_section_of_the_site() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()] == []
    sections = {page.parent.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*/*.md")}
    assert sections == {link.rpartition("/")[0] for link in links if link.startswith("docs/") and link.endswith(".md")}


def test_its_tables_name_all_methods() -> None:
    assert row("less forgetting") | row("parts per domain") | row("comparison") == METHODS.keys()
    assert row("selection") == SELECTIONS.keys()
    assert row("merging") == MERGERS.keys()


def test_its_table_only_names_supported_models() -> None:
    named = re.findall(r"^\| (BERT.*|GPT-2.*) \| `", PAGE, re.MULTILINE)
    assert len(named) == 2
    for name in ("BERT", "RoBERTa", "DistilBERT", "ELECTRA", "ModernBERT", "GPT-2", "Llama", "Mistral"):
        assert name in ", ".join(named).split(", ")
        assert name.lower().replace("-", "") in {kind.replace("-", "") for kind in PATTERNS}


def test_its_example_and_result_are_those_of_the_notebook() -> None:
    given = flat(configuration(DAPT, None, example()))
    notebook = json.loads((ROOT / "docs" / "start" / "quickstart.ipynb").read_text("utf-8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"text": "python.txt"}
    exec(code[0], names)
    settings = ast.parse(next(cell for cell in code if "settings = {" in cell))
    assigned = next(
        node for node in settings.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "settings"
    )
    theirs = flat(configuration(DAPT, eval(ast.unparse(assigned.value), names), {}))
    assert {name for name in given if given[name] != theirs[name]} == {"storage.root"}
    printed = re.search(r"Estimate\(value=(.*?), low=(.*?), high=(.*?)\)", PAGE)
    assert printed
    said = next(
        "".join(o["text"])
        for c in notebook["cells"]
        for o in c.get("outputs", [])
        if "change -" in "".join(o.get("text", []))
    )
    value, low, high = (f"{float(number):.2f}" for number in printed.groups())
    assert said == f"change {value} nats, 95% interval {low} to {high}\n"
