"""Tests that the demo is small, and that it says how long it will take before it starts to train."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapt.cli import demo_command
from adapt.config import Config
from adapt.corpus.files.manifest import package_records, package_sources
from adapt.job import job_of
from adapt.parse import parse
from adapt.support.shipped import recipe_file
from tests.samples import sentences, write

MOST_SOURCE_MB = 20
MOST_TOKENS = 250_000
"""Maximum number of training tokens, so that the demo takes two minutes on the slowest known machine (4,800
tokens/s)."""


@pytest.fixture(scope="module")
def config() -> Config:
    return parse([f"--config={recipe_file('demo')}"], "dontstop demo", job_of("dapt").kind)


def test_its_text_and_its_training_are_bounded(config: Config) -> None:
    training = config.training
    assert training.max_steps is not None
    assert training.max_steps * training.global_batch_size * training.sequence_length <= MOST_TOKENS
    files = [file for record in package_records(config.corpus.packages) for file in package_sources(record)]
    assert 1e6 < sum(file.stat().st_size for file in files) < 1e6 * MOST_SOURCE_MB


def test_a_machine_half_as_fast_takes_twice_as_long() -> None:
    assert demo_command.time_forecast(100, 0.3, 0.3) == "The demo takes about 30 s on this machine."
    assert demo_command.time_forecast(100, 0.6, 0.7) == "The demo takes about 1 min 00 s on this machine."


def test_it_says_that_other_processes_slow_it_down() -> None:
    said = demo_command.time_forecast(100, 0.3, 1.2)
    assert said.endswith(
        "about 30 s on this machine when it is idle. Other processes are running now, so it takes longer."
    )


def test_fewer_steps_take_less_time(config: Config) -> None:
    short = replace(config, training=replace(config.training, max_steps=5))
    assert 0 < (demo_command.length_in_yardsticks(short) or 0) < (demo_command.length_in_yardsticks(config) or 0)


def test_there_is_no_forecast_for_another_model_or_an_unknown_length(config: Config) -> None:
    assert demo_command.length_in_yardsticks(replace(config, model=replace(config.model, path="other"))) is None
    assert demo_command.length_in_yardsticks(replace(config, training=replace(config.training, max_steps=None))) is None


def test_the_forecast_is_shown_before_a_run_and_not_for_a_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in sentences(3)])
    monkeypatch.setattr(demo_command, "run_and_show", lambda job, context, arguments: ran.append(context.config.name))
    arguments = ["--corpus.source=files", "--corpus.packages=[]", f"--corpus.paths={corpus}", "--name=mine"]
    arguments.append(f"--storage.root={tmp_path / 'runs'}")
    monkeypatch.setattr(demo_command, "yardstick_s", lambda: (0.1, 0.1))
    monkeypatch.setattr("adapt.model.demo_checkpoint.demo_checkpoint", lambda name: tmp_path)
    demo_command.main(arguments)
    assert "The demo takes about " in capsys.readouterr().err
    monkeypatch.setattr(demo_command, "unfinished", lambda stages, store: ([], {}))
    demo_command.main(arguments)
    assert "takes about" not in capsys.readouterr().err
    assert ran == ["mine", "mine"]
