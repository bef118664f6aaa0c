"""No script in jobs/ has the name of a standard module, because Python searches the script's folder first."""

import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"
HIDING = sorted(file.stem for file in JOBS.glob("*.py") if file.stem in sys.stdlib_module_names)


def test_only_one_script_is_named_like_a_standard_module() -> None:
    assert HIDING == ["select"]


@pytest.mark.parametrize("name", ["dapt", *HIDING])
def test_scripts_find_the_standard_library(name: str) -> None:
    """Runs each script in its own folder. `tests/cli/test_main.py` runs the scripts in the folder of the project."""
    ran = subprocess.run(
        [sys.executable, f"{name}.py", "--help"], cwd=JOBS, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"usage: dontstop {name} ")


def test_child_processes_do_not_get_the_folder_of_the_script() -> None:
    """Ray passes the script's folder to worker processes if the folder is on sys.path."""
    program = (
        "import runpy, sys\n"
        "import adapt.cli.main as cli\n"
        f"sys.path.insert(0, {str(JOBS)!r})\n"
        "cli.main = lambda arguments: print(arguments, sys.path[0])\n"
        f"runpy.run_path({str(JOBS / 'dapt.py')!r}, run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"['dapt'] {JOBS.parent}"
