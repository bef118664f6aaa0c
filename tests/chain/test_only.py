"""Tests of `chain run --only` in a chain whose other stages cannot be built yet. Nothing is trained."""

from pathlib import Path

import pytest
import yaml

from adapt.chain.chain_run import ChainRun
from adapt.support.errors import DataError, TrainingError
from tests.job.worlds import enter


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChainRun:
    """Returns a run of one entry of a chain. The text of the other entry does not exist."""
    config = enter(tmp_path, monkeypatch, "a")
    content = {
        "name": "study",
        "common": {
            "model.path": config.model.path,
            "storage.root": config.storage.root,
            "training": {"sequence_length": 64, "max_steps": 2},
            "evaluation.sequence_length": 64,
        },
        "stages": {
            "dapt": {"job": "dapt", "corpus.paths": "data/a.jsonl"},
            "other": {"job": "dapt", "corpus.paths": "data/missing.jsonl"},
        },
    }
    Path("chain.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return ChainRun.of("chain.yaml", {}, {}, {"stage": ["dapt"]})


def test_the_report_leaves_out_stages_that_cannot_be_built(
    run: ChainRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("adapt.chain.chain_run.run_stages", lambda *_: None)
    report = run.run()
    assert report.path.is_file()
    assert report.study.missing == ["dapt"]
    assert "because other stages cannot be built: data/missing.jsonl" in capsys.readouterr().err


def test_without_only_the_report_needs_all_stages(run: ChainRun) -> None:
    with pytest.raises(DataError, match="matches no file"):
        ChainRun(run.file).report()


def test_a_failure_is_not_hidden_by_a_failure_of_the_report(
    run: ChainRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise TrainingError("the loss is not finite", "lower the rate")

    def is_full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("adapt.chain.chain_run.run_stages", fail)
    with pytest.raises(TrainingError, match="the loss is not finite"):
        run.run()
    assert (Path("runs") / "reports" / "study" / "report.html").is_file()
    monkeypatch.setattr("adapt.show.report.report_page.write_report", is_full)
    with pytest.raises(TrainingError, match="the loss is not finite"):
        run.run()
    assert "the report could not be written: OSError('no space left')" in capsys.readouterr().err
