"""A job's folder comes first where Python looks for modules: no script may stand in the way of the standard library."""

import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"
HIDING = sorted(file.stem for file in JOBS.glob("*.py") if file.stem in sys.stdlib_module_names)
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import {0}, selectors, subprocess; print({0}.__file__)"


def test_one_script_has_the_name_of_a_module() -> None:
    assert HIDING == ["select"]


@pytest.mark.parametrize("name", HIDING)
def test_the_module_of_that_name_is_found_behind_it(name: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM.format(name), str(JOBS)]
    found = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).parent != JOBS
    whole = subprocess.run(
        [sys.executable, "-c", "import select; print(select.poll)"],
        cwd=JOBS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr
