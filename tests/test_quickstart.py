"""Tests that docs/start/quickstart.ipynb runs, shows what its text says, and stores no details of the machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.drive import run_forked

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "start" / "quickstart.ipynb"
MOST_BYTES = 100_000


def outputs(notebook: dict[str, Any]) -> list[str]:
    """Returns the text that each code cell prints or shows."""
    return [
        "".join(line for output in cell["outputs"] for line in output.get("text") or output["data"]["text/plain"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def check_shown(notebook: dict[str, Any]) -> None:
    _, _, plan, run, change, guesses, again = outputs(notebook)
    assert plan == "6 of 6 stages are to run\n"
    assert "python: loss on held-out text" in run
    assert "and the model's best guesses" in run
    assert change.startswith("change -")
    assert len(guesses.splitlines()) == 3
    assert again.startswith("True\n")
    assert "prepare" not in again
    (shown,) = (o for c in notebook["cells"] for o in c.get("outputs", []) if "text/html" in o.get("data", {}))
    page = "".join(shown["data"]["text/html"])
    assert page.startswith("<iframe srcdoc=")
    assert "&lt;svg" in page


def test_stored_outputs_are_real_and_small_and_name_no_machine() -> None:
    text = NOTEBOOK.read_text("utf-8")
    check_shown(json.loads(text))
    assert len(text) < MOST_BYTES
    assert not any(f"{folder}/" in text for folder in ("/home", "/root", "/tmp", "/work", "/Users"))


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, tiny_bert: Path) -> None:
    parameters = json.dumps({"model_name": str(tiny_bert), "steps": 20})
    command = [str(ROOT / "scripts" / "notebook.py"), str(NOTEBOOK), "out.ipynb", parameters]
    done = run_forked(command, tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    check_shown(json.loads((tmp_path / "out.ipynb").read_text("utf-8")))
