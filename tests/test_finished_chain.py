"""Tests `benchmarks/finished_chain.py`, which reads the results of a chain and splits off a program's own option."""

import sys
from pathlib import Path

import pytest
import yaml

from benchmarks import vocabulary_study
from benchmarks.finished_chain import read_finished, split_file
from tests.samples import sentences, write


@pytest.fixture
def chain_file(tmp_path: Path, tiny_bert: Path) -> str:
    """Writes a chain with one stage, which has not run."""
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in sentences(20)])
    lengths = {"training.sequence_length": 64, "evaluation.sequence_length": 64}
    content = {
        "name": "small",
        "common": {"model.path": str(tiny_bert), "storage.root": str(tmp_path / "runs"), **lengths},
        "stages": {"adapted": {"job": "dapt", "corpus.paths": corpus, "training.max_steps": 3}},
    }
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


def test_a_chain_is_read_with_the_options_of_its_command(chain_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, finished = read_finished([chain_file, "--training.max_steps", "2"])
    assert chain.common["training.max_steps"] == 2
    assert (finished.name, finished.entries, finished.missing) == ("small", [], ["adapted"])
    monkeypatch.setattr(sys, "argv", ["vocabulary_study", chain_file])
    with pytest.raises(SystemExit, match="nothing of small has run: 1 stages are left"):
        vocabulary_study.main()


def test_the_own_option_of_a_program_is_split_off() -> None:
    assert split_file("--csv", ["chain.yaml", "--csv", "out.csv", "--only", "a"]) == (
        Path("out.csv"),
        ["chain.yaml", "--only", "a"],
    )
    assert split_file("--csv", ["chain.yaml", "--common", "x"]) == (None, ["chain.yaml", "--common", "x"])
