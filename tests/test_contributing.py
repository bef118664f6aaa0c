"""CONTRIBUTING.md and docs/develop/design.md agree with the code: commands, files, sizes, layers and words."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from adapt.job import JOBS
from adapt.method.base import Method
from adapt.method.table import METHODS
from tests.conftest import longer
from tests.test_layers import DEEPSPEED_ONLY_IN, WITHOUT_RAY

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
DESIGN = (ROOT / "docs" / "develop" / "design.md").read_text("utf-8")
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
CHECK = (ROOT / "scripts" / "check").read_text("utf-8")

CODE = ("adapt", "benchmarks", "cluster", "jobs")
BESIDE = {"bad_input", "chaos", "cluster", "docs", "forks", "fuzz", "jobs"}
"""Folders of tests without a counterpart in `adapt`. They test the whole project from outside, or contain helpers."""


def stated(pattern: str, text: str = PAGE) -> str:
    """Returns the first group of a pattern's match in the text of a page, ignoring line breaks."""
    match = re.search(pattern.replace(" ", r"\s+"), text)
    assert match, f"the page does not say {pattern!r} any more: say it, or change this test"
    return match[1]


def python_files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def lines(file: Path) -> int:
    return len(file.read_text("utf-8").splitlines())


def test_named_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", PAGE, re.MULTILINE))
    assert named >= {"env", "check", "quick", "test", "fuzz"}
    assert named <= targets
    assert {script for script in named if script not in stated(r"\.PHONY: (.*)", MAKEFILE).split()} == set()


def test_make_check_does_what_the_page_says_and_ci_runs_everything() -> None:
    said = stated(r"make check # (.*)")
    assert said == "ruff (lint and format), mypy --strict, changelog"
    for part in ("ruff check", "ruff format --check", "mypy", "CHANGELOG.md"):
        assert part in CHECK
    assert PROJECT["tool"]["mypy"]["strict"] is True
    steps = (ROOT / ".ci" / "run").read_text("utf-8").split("\n\n")[-1].split("\n")
    assert steps[0] == "make env"
    assert steps[1].startswith("make --jobs=2 --output-sync check docs")
    assert steps[2].startswith('make test ARGS="--cov=adapt')


def test_python_versions_agree() -> None:
    said = stated(r"Python (3\.\d+) or newer")
    assert PROJECT["project"]["requires-python"] == f">={said}"
    assert stated(r"Python (3\.\d+) or newer", MAKEFILE) == said


@pytest.mark.parametrize("name", sorted({*re.findall(r"`([\w.-]+/[\w./-]*|[a-zA-Z-]+\.\w+)`", PAGE)}))
def test_named_files_and_folders_exist(name: str) -> None:
    assert (ROOT / name).exists()


def test_slow_marks_and_warnings_are_as_the_page_says() -> None:
    options = PROJECT["tool"]["pytest"]["ini_options"]
    seconds = stated(r"more than about (\d+) s with")
    assert any(marker.startswith("slow:") and f" {seconds} s" in marker for marker in options["markers"])
    ours = next(rule.split(":", 3)[3] for rule in options["filterwarnings"] if rule.startswith("error"))
    assert all(re.match(ours, f"{folder}.module") for folder in CODE)
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_no_file_exceeds_the_stated_length() -> None:
    most = int(stated(r"none has over (\d+)"))
    most_of_tests = int(stated(r"no test over (\d+)"))
    sizes = {file: lines(file) for file in python_files(*CODE)}
    assert [str(file) for file, size in sizes.items() if size > most] == []
    assert [str(file) for file in python_files("tests") if lines(file) > most_of_tests] == []


def test_folders_are_divided_and_list_every_module_in_their_init() -> None:
    most = int(stated(r"A folder that passes (\d+) files is divided"))
    folders = {file.parent for file in python_files("adapt")}
    modules = {folder: {file.stem for file in folder.glob("*.py")} - {"__init__"} for folder in folders}
    large = {folder.relative_to(ROOT).as_posix() for folder, names in modules.items() if len(names) > most}
    assert not large
    for folder in sorted(folders):
        text = (folder / "__init__.py").read_text("utf-8")
        if listed := set(re.findall(r"^- `(\w+)/?`", text, re.MULTILINE)):  # A small folder's text may have no list.
            inside = modules[folder] | {other.name for other in folders if other.parent == folder}
            assert listed <= inside, folder
            assert inside <= set(re.findall(r"`(\w+)/?`", text)), folder


def test_folders_of_tests_mirror_the_library() -> None:
    library = {file.parent.relative_to(ROOT / "adapt") for file in python_files("adapt")}
    tests = {file.parent.relative_to(ROOT / "tests") for file in python_files("tests")}
    assert {folder.as_posix() for folder in tests - library} == BESIDE
    untested = [folder.as_posix() for folder in library - tests if not (ROOT / f"tests/test_{folder.name}.py").exists()]
    assert untested == []


def test_docstrings_do_not_begin_with_of() -> None:
    begun = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in python_files(*CODE)
        for line in file.read_text("utf-8").splitlines()
        if line.lstrip().startswith('"""Of ')
    ]
    assert begun == []


def test_modules_named_in_text_exist() -> None:
    """The last part of a dotted name may also be a function, class or variable of the module."""
    for file in [*python_files(*CODE), ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for name in set(re.findall(r"`(adapt(?:\.[a-z_]\w*)+)", file.read_text("utf-8"))):
            path = ROOT / name.replace(".", "/")
            holder = next(
                (f for f in (path.parent.with_suffix(".py"), path.parent / "__init__.py") if f.exists()), None
            )
            is_held = holder is not None and re.search(rf"\b{path.name}\b", holder.read_text("utf-8"))
            assert path.is_dir() or path.with_suffix(".py").exists() or is_held, f"{file.relative_to(ROOT)}: {name}"


def test_the_glossary_names_all_jobs() -> None:
    row = stated(r"\|job\|what a user starts: (.*?) \(", GLOSSARY)
    assert set(re.findall(r"`(\w+)`", row)) == set(JOBS)


def test_the_page_on_design_says_where_ray_and_deepspeed_are_imported() -> None:
    without_ray = stated(r"Ray is not imported in (.*?); DeepSpeed", DESIGN.replace("\n", " "))
    assert set(re.findall(r"`(\w+)`", without_ray)) == WITHOUT_RAY
    deepspeed = stated(r"DeepSpeed only in (.*?)\. ", DESIGN.replace("\n", " "))
    folder = ""
    named = []
    for name in re.findall(r"`([\w./]+)`", deepspeed):
        folder = name.rpartition("/")[0] or folder
        named.append(f"adapt/{folder}/{name.rpartition('/')[2]}")
    assert tuple(named) == DEEPSPEED_ONLY_IN


def test_files_named_on_the_page_on_design_exist() -> None:
    """Paths on the page are relative to `adapt/`, to the project, or to the folder of the previously named file."""
    folder = ""
    for name in re.findall(r"`([\w/]+\.py)`", DESIGN):
        places = [file for file in (ROOT / name, ROOT / "adapt" / name, ROOT / folder / name) if file.exists()]
        assert places, name
        folder = places[0].parent.as_posix()


def test_the_page_for_agents_names_the_methods_of_each_hook() -> None:
    page = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^:|]+): [^|]*\| (.*) \|$", page, re.MULTILINE)
    assert len(rows) >= 8
    for hooks, methods in rows:
        names = re.findall(r"`(\w+)`", hooks)
        said = {method for method in re.findall(r"`(\w+)`", methods) if method in METHODS}
        overriding = {
            m for m in METHODS for hook in names if getattr(METHODS.load(m), hook) is not getattr(Method, hook)
        }
        assert overriding == said, names


def test_the_tests_that_make_quick_leaves_out_exist() -> None:
    for name in longer():
        file, *_, function = name.split("::")
        assert f"def {function}(" in (ROOT / file).read_text("utf-8"), f"run `make longer`: there is no {name}"
