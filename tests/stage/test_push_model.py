"""Tests the stage that pushes a model: its key, early checks, and that a failed push is tried again."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapt.chain import chain_run
from adapt.chain.chain_run import ChainRun
from adapt.chain.chain_stages import Chain
from adapt.config import Config, ExportConfig
from adapt.runner import Done, Outcome, Stage, Store, ensure
from adapt.show.blocks import shown_by
from adapt.show.progress.chain_now import StudyNow
from adapt.stage.push_model import Push
from adapt.support.errors import ConfigError, HubError
from tests.handover.fake_hub import FakeHub
from tests.handover.test_push import hub as hub  # a fixture


@dataclass(frozen=True)
class Toy:
    steps: int


@dataclass(frozen=True, eq=False)
class ToyExport(Stage[Toy]):
    kind = "export"
    name: str
    model: Path

    def what(self) -> dict[str, Any]:
        return {"name": self.name}

    def run(self, folder: Path, done: Done) -> Outcome[Toy]:
        shutil.copytree(self.model, folder, dirs_exist_ok=True)
        return Outcome(Toy(3))


@dataclass(frozen=True)
class ToyContext:
    config: Config
    store: Store


def push_to(repository: str | None, root: Path, model: Path, name: str = "physics", **settings: Any) -> Push | None:
    config = Config(name=name, export=ExportConfig(push=repository, **settings))
    return Push.of(ToyContext(config, Store(root)), ToyExport(name, model))  # type: ignore[arg-type]


def test_a_push_runs_once(hub: FakeHub, tiny_bert: Path, tmp_path: Path) -> None:
    push = push_to("me/physics", tmp_path, tiny_bert)
    assert push
    done = ensure(push, Store(tmp_path))
    assert "model.safetensors" in hub.files
    assert "stage.json" not in hub.files
    assert "Pushed to http://127.0.0.1" in str(shown_by(done.result, done.record))
    asked = len(hub.asked)
    ensure(push, Store(tmp_path))
    assert len(hub.asked) == asked


def test_a_failed_push_leaves_the_export_and_is_tried_again(hub: FakeHub, tiny_bert: Path, tmp_path: Path) -> None:
    push = push_to("me/physics", tmp_path, tiny_bert)
    assert push
    hub.breaks_at = "/commit/"
    with pytest.raises(HubError, match=rf"The model stays in {push.folder}\n.*dontstop push {push.folder} me/physics"):
        ensure(push, Store(tmp_path))
    assert (push.folder / "stage.json").is_file()
    hub.breaks_at = ""
    assert ensure(push, Store(tmp_path)).result.url.endswith("/me/physics")


def test_a_missing_token_is_said_before_the_export_runs(
    hub: FakeHub, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    push = push_to("me/physics", tmp_path, tiny_bert)
    assert push
    with pytest.raises(HubError, match=rf"HF_TOKEN is not set\n.*push later: dontstop push {push.folder} me/physics"):
        ensure(push, Store(tmp_path))
    assert not push.folder.exists()


def test_a_study_that_ends_at_its_budget_pushes_the_finished_models(
    hub: FakeHub, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, config = Store(tmp_path), Config()
    finished, waiting = push_to("me/a", tmp_path, tiny_bert), push_to("me/b", tmp_path, tiny_bert, "chemistry")
    assert finished
    assert waiting
    ensure(finished.export, store)
    goals: Any = [SimpleNamespace(stage=push.export) for push in (finished, waiting)]
    study = StudyNow(looks=2, seeds=[2, 3], next_look=2)
    chain = Chain(goals, store, config.resources, config.notify, [finished, waiting], sequential=study)
    monkeypatch.setattr(ChainRun, "build", lambda run: chain)
    monkeypatch.setattr(chain_run, "exceeds_budget", lambda *given: True)
    monkeypatch.setattr(chain_run, "run_stages", lambda stages, *given: [ensure(stage, store) for stage in stages])
    no_file: Any = None
    ChainRun(no_file).finish()
    assert {*hub.repositories} == {"me/a"}
    assert not store.record_of(waiting.export)
    said = capsys.readouterr().err
    assert "the study ends here" in said
    assert "Nothing is pushed to me/b, because chemistry is not finished" in said


def test_the_key_depends_on_repository_and_model(tiny_bert: Path, tmp_path: Path) -> None:
    first = push_to("me/a", tmp_path, tiny_bert)
    assert first == push_to("me/a", tmp_path, tiny_bert, private=False)
    assert first != push_to("me/b", tmp_path, tiny_bert)
    assert first != push_to("me/a", tmp_path, tiny_bert, "chemistry")
    assert push_to(None, tmp_path, tiny_bert) is None
    with pytest.raises(ConfigError, match=r"export.push: 'physics' is not the name"):
        push_to("physics", tmp_path, tiny_bert)
    assert first
    assert replace(first, name="other") == first
