"""Tests that untested package versions are named, and that errors under such versions are not called bugs."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from adapt.cli import doctor
from adapt.support import versions
from adapt.support.versions import TRIED, install_command, untried
from adapt.train.failure import as_ours
from tests.terminal.test_console import exit_code, fails_with

ROOT = Path(__file__).parents[2]
NEWER = {"ray": "2.61.0", "deepspeed": "0.20.1", "transformers": "5.24.0"}


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that Ray, DeepSpeed and transformers have newer minor versions than the tested ones."""
    monkeypatch.setattr(importlib.metadata, "version", NEWER.__getitem__)


def test_the_tried_versions_are_those_that_the_tests_run_with() -> None:
    pinned = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    assert {package: pinned[package] for package in TRIED} == TRIED
    assert untried() == []


def test_the_project_allows_the_tried_minor_versions_and_no_others() -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    for package, version in TRIED.items():
        (line,) = (line for line in lines if re.match(rf"{package}\b", line))
        major, minor, _ = version.split(".")
        assert line.endswith(f">={major}.{minor},<{major}.{int(minor) + 1}")


def test_another_minor_version_is_named(newer: None) -> None:
    assert untried() == [
        "not tested with Ray 2.61.0 (tested: 2.60)",
        "not tested with DeepSpeed 0.20.1 (tested: 0.19)",
        "not tested with transformers 5.24.0 (tested: 5.23)",
    ]
    assert untried("ray", "numpy") == ["not tested with Ray 2.61.0 (tested: 2.60)"]
    assert install_command() == "pip install ray==2.60.0 deepspeed==0.19.8 transformers==5.23.0"


def test_other_patch_releases_and_missing_packages_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "ray":
            raise importlib.metadata.PackageNotFoundError
        return {"deepspeed": "0.19.99", "transformers": "5.23.1.dev0"}[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert untried() == []


def test_an_unexpected_error_under_an_untried_version_is_not_called_a_bug(
    newer: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(fails_with(AttributeError("no attribute x"))) == 70
    what, fix = capsys.readouterr().err.splitlines()
    assert what == "Unexpected: AttributeError: no attribute x"
    assert "not tested with Ray 2.61.0 (tested: 2.60); not tested with DeepSpeed 0.20.1" in fix
    assert "pip install ray==2.60.0" in fix
    assert "a bug" not in fix


def test_errors_of_workers_name_untested_versions(newer: None, tmp_path: Path) -> None:
    assert "not tested with DeepSpeed 0.20.1 (tested: 0.19)" in str(as_ours(RuntimeError("broken"), tmp_path))


def test_the_doctor_names_untried_versions(newer: None) -> None:
    found = doctor.Requirement("ray", ">=2.60,<2.61").finding()
    assert str(found) == "fix  not tested with Ray 2.61.0 (tested: 2.60): pip install 'ray>=2.60,<2.61'"


def test_versions_are_compared_without_importing_the_libraries() -> None:
    program = (
        "import sys; from adapt.support.versions import TRIED, untried; untried(); print({*TRIED} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.strip() == "set()", ran.stderr
    assert versions.named("ray") == f"Ray {TRIED['ray']}"
