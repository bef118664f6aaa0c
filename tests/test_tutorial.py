"""The blocks of docs/start/tutorial.md run in order, as for a reader, and give the results that the page states."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, CodeBlock, blocks_of
from tests.drive import run_forked


def run(block: CodeBlock, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a block of the tutorial.

    The folder of the exported model that the page names is replaced by the folder that this test has created.
    `dontstop` commands run in forked processes.
    """
    made = [file.relative_to(folder).as_posix() for file in folder.glob("runs/export/tutorial-*")]
    text = re.sub(r"runs/export/tutorial-[0-9a-f]{16}", lambda page: made[0], block.text)
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    if block.language == "sh" and words[0] == "dontstop":
        return run_forked([str(ROOT / "jobs" / f"{words[1]}.py"), *words[2:]], folder)
    command = ["sh", "-ec", text] if block.language == "sh" else [sys.executable, "-c", text]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True)


@pytest.mark.slow
def test_every_block_of_the_tutorial_runs_and_does_what_the_text_says(tmp_path: Path) -> None:
    ended = []
    for block in blocks_of((DOCS / "start" / "tutorial.md").read_text("utf-8")):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        elif block.language in ("sh", "python"):
            done = run(block, tmp_path)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
            ended.append((block.text, done))

    first_plan, job, guesses, again, other_rate, other_resources, chosen, tapt = (
        done for text, done in ended if "pydoc" not in text
    )
    assert json.loads(first_plan.stdout)["metrics"] == {"done": 0, "stages": 8}
    metrics = json.loads(job.stdout.splitlines()[-1])["metrics"]
    domain, general = metrics["losses"]["domain"], metrics["losses"]["general"]
    assert domain["after"]["value"] < domain["before"]["value"]
    assert general["after"]["value"] < general["before"]["value"]
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
    plan = json.loads(tapt.stdout)["metrics"]
    assert 0 < plan["done"] < plan["stages"]
