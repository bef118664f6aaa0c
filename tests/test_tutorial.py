"""docs/start/tutorial.md is true: its blocks are run in order, as a reader would."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drive import run_forked

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(kind: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Jobs are forked; what else there is runs as it would for a reader."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    if kind == "sh" and words[0] == "python":
        return run_forked(words[1:], folder)
    command = ["sh", "-ec", text] if kind == "sh" else [sys.executable, "-c", text]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True)


@pytest.mark.slow
def test_every_block_of_the_tutorial_runs_and_does_what_the_text_says(tmp_path: Path) -> None:
    for name in ("jobs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    said = []
    for kind, text in BLOCK.findall((ROOT / "docs" / "start" / "tutorial.md").read_text()):
        if kind == "yaml":
            name = re.match(r"# (\S+)", text)
            assert name, "a YAML block begins with its file's name"
            (tmp_path / name[1]).write_text(text)
            continue
        done = run(kind, text, tmp_path)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        said.append((text, done))

    first_plan, job, guesses, again, other_rate, other_resources, chosen, curated = (
        done for text, done in said if "pydoc" not in text and "cat" not in text
    )
    assert json.loads(first_plan.stdout)["metrics"] == {"done": 0, "stages": 8}
    metrics = json.loads(job.stdout.splitlines()[-1])["metrics"]
    domain, general = metrics["losses"]["domain"], metrics["losses"]["general"]
    assert domain["after"]["value"] < domain["before"]["value"]
    assert general["before"]["value"] == pytest.approx(general["after"]["value"] - general["change"]["value"])
    assert len(guesses.stdout.splitlines()) == 3
    assert again.stdout.splitlines()[-1] == job.stdout.splitlines()[-1]
    assert "training" not in again.stderr.split("tutorial:")[0]
    assert "training.learning_rate: 0.0005 -> 0.0001" in " ".join(other_rate.stderr.split())
    assert json.loads(other_resources.stdout)["metrics"] == {"done": 8, "stages": 8}
    selected = json.loads(chosen.stdout.splitlines()[-1])["metrics"]
    assert selected["kl_reduction"] > 0
    assert selected["dropped"]["in evaluation set dev-and-test"] > 0
    assert 5000 <= selected["tokens"] < 5200
    assert "task-pool" in curated.stderr
