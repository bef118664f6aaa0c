"""Tests that each file around the code is valid, and that the packages, paths and commands it names exist."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt import __version__

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
FORMS = ["bug.yml", "feature.yml"]
PAGES = ["AGENTS.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
YAML_FILES = [
    ".github/workflows/ci.yml",
    ".github/workflows/faults.yml",
    ".github/workflows/nightly.yml",
    ".github/dependabot.yml",
    ".github/ISSUE_TEMPLATE/config.yml",
    *(f".github/ISSUE_TEMPLATE/{form}" for form in FORMS),
    ".pre-commit-config.yaml",
    "CITATION.cff",
]


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / name).read_text("utf-8"))
    return content


@pytest.mark.parametrize("name", YAML_FILES)
def test_yaml_files_are_valid(name: str) -> None:
    assert read(name)


def test_all_yaml_files_of_github_are_tested() -> None:
    found = {file.relative_to(ROOT).as_posix() for file in (ROOT / ".github").rglob("*.y*ml")}
    assert found <= set(YAML_FILES)


def test_the_workflow_runs_the_script_that_contributors_run() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]
    (python,) = (step for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert PROJECT["requires-python"] == f">={python['with']['python-version']}"
    for file in python["with"]["cache-dependency-path"].split():
        assert (ROOT / file).is_file()
    kept = [step["with"]["path"] for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert "coverage.xml" in kept


@pytest.mark.parametrize("form", FORMS)
def test_issue_forms_have_what_github_requires(form: str) -> None:
    content = read(f".github/ISSUE_TEMPLATE/{form}")
    assert {"name", "description", "body"} <= set(content)
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert fields
    assert all(field["type"] in ("textarea", "input", "dropdown", "checkboxes") for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    identifiers = [field["id"] for field in fields]
    assert len(set(identifiers)) == len(identifiers)


def test_bug_reports_ask_for_the_output_of_doctor() -> None:
    labels = [field["attributes"].get("label", "") for field in read(".github/ISSUE_TEMPLATE/bug.yml")["body"]]
    assert any("dontstop doctor" in label for label in labels)


def test_dependabot_checks_the_files_that_name_packages() -> None:
    content = read(".github/dependabot.yml")
    assert content["version"] == 2
    folders = {update["package-ecosystem"]: update["directory"] for update in content["updates"]}
    assert set(folders) == {"pip", "docker", "github-actions"}
    assert (ROOT / folders["pip"].lstrip("/") / "pyproject.toml").is_file()
    assert (ROOT / folders["docker"].lstrip("/") / "Dockerfile").is_file()


def test_code_owners_name_folders_that_exist() -> None:
    lines = [line.split() for line in (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()]
    for pattern, *owners in (words for words in lines if words and words[0] != "#"):
        assert pattern == "*" or (ROOT / pattern.strip("/")).is_dir()
        assert all(owner.startswith("@") for owner in owners)


def test_hooks_run_the_commands_of_make_check() -> None:
    check = (ROOT / "scripts" / "check").read_text()
    local, *_ = read(".pre-commit-config.yaml")["repos"]
    assert [hook["id"] for hook in local["hooks"]] == ["ruff", "ruff-format", "mypy"]
    assert all(hook["entry"].startswith(".venv/bin/python -m ") for hook in local["hooks"])
    (folders,) = re.findall(r"for folder in (.+?); do", check)
    assert local["hooks"][-1]["entry"].endswith(f" mypy {folders}")


def test_citation_agrees_with_the_package() -> None:
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    # Together with the schema's version, these are the required fields of a CITATION.cff file.
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["title"] == PROJECT["name"]
    assert citation["version"] == __version__
    assert PROJECT["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert set(citation["keywords"]) == set(PROJECT["keywords"])
    assert f"## [{__version__}] - {citation['date-released']}" in CHANGELOG
    for reference in citation["references"]:
        assert {"authors", "title", "type"} <= set(reference)


def test_changelog_lists_versions_from_new_to_old() -> None:
    titles = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", title) for title in titles[1:]]
    assert all(released)
    dates = [match[2] for match in released if match]
    assert dates == sorted(dates, reverse=True)
    sections = set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"`([\w.-]+/[\w./-]*|[A-Za-z-]+\.(?:md|toml|txt))`", text))
    named |= {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link}
    named |= set(re.findall(r"pytest ([\w/]+\.py)", text))
    missing = {name for name in named if "NAME" not in name and not (ROOT / name).exists()}
    assert missing == set()


def test_commands_in_agents_md_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / "AGENTS.md").read_text(), re.MULTILINE))
    assert named
    assert named <= targets


def test_agents_md_names_two_pages_that_describe_every_part_of_the_library() -> None:
    text = (ROOT / "AGENTS.md").read_text("utf-8")
    assert len(text.split()) <= 1000
    parts = {folder.parent.name for folder in (ROOT / "adapt").glob("*/__init__.py")}
    # Every part of `adapt` uses `ray` and `support`, so the page need not name them.
    assert parts - set(re.findall(r"`adapt/(\w+)", text)) <= {"ray", "support"}
