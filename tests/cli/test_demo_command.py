"""Tests that the demo is small, and that it says how long it takes before it starts to train."""

from pathlib import Path

import pytest

from adapt.cli import demo_command
from adapt.config import Config
from adapt.corpus.files.manifest import package_records, package_sources
from adapt.job import job_of
from adapt.parse import parse
from adapt.support.paths import recipe_file
from tests.samples import sentences, write

MOST_SOURCE_MB = 20


@pytest.fixture(scope="module")
def config() -> Config:
    return parse([f"--config={recipe_file('demo')}"], "dontstop demo", job_of("dapt").kind)


def test_its_text_and_its_training_are_bounded(config: Config) -> None:
    training = config.training
    assert training.max_steps is not None
    assert training.max_steps * training.global_batch_size * training.sequence_length <= demo_command.MOST_TOKENS
    files = [file for record in package_records(config.corpus.packages) for file in package_sources(record)]
    assert 1e6 < sum(file.stat().st_size for file in files) < 1e6 * MOST_SOURCE_MB


def test_the_forecast_is_shown_before_a_run_and_not_for_a_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in sentences(3)])
    monkeypatch.setattr(demo_command, "run_and_show", lambda job, context, arguments: ran.append(context.config.name))
    arguments = ["--corpus.source=files", "--corpus.packages=[]", f"--corpus.paths={corpus}", "--name=mine"]
    arguments.append(f"--storage.root={tmp_path / 'runs'}")
    monkeypatch.setattr("adapt.model.demo_checkpoint.demo_checkpoint", lambda name: tmp_path)
    demo_command.main(arguments)
    assert "The demo takes at most two minutes" in capsys.readouterr().err
    demo_command.main([*arguments, "--training.max_steps=100000"])
    assert "The demo takes" not in capsys.readouterr().err
    monkeypatch.setattr(demo_command, "unfinished", lambda stages, store: ([], {}))
    demo_command.main(arguments)
    assert "The demo takes" not in capsys.readouterr().err
    assert ran == ["mine"] * 3
