"""Tests of the vocabulary analysis: record, figure, tables, report, and the error for a corpus without words."""

import json
from pathlib import Path

import pytest

from adapt.config import Config, CorpusConfig, EvaluationConfig, ModelConfig, StorageConfig, TrainingConfig
from adapt.job.job_run import carry_out
from adapt.job.measuring_jobs import VOCABULARY_JOB, change_vocabulary, with_action
from adapt.runner import ensure
from adapt.runner.record import load_record, read_result
from adapt.show.blocks import Figures, Table, TextBlock
from adapt.stage.context import Context
from adapt.support.errors import DataError
from adapt.vocabulary.vocabulary_results import Analyzed
from tests.samples import sentences, write


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    domain = [f"{text} hepatitis" for text in sentences(20)]
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(
            paths=write(tmp_path / "domain.jsonl", [{"text": text} for text in domain]), heldout_fraction=0.0
        ),
        training=TrainingConfig(sequence_length=64),
        evaluation=EvaluationConfig(
            sequence_length=64,
            general_paths=write(tmp_path / "general.jsonl", [{"text": text} for text in sentences(20, 1)]),
        ),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def test_domains_are_analyzed_and_shown(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "analyze",
        f"--model.path={config.model.path}",
        f"--corpus.paths={config.corpus.paths}",
        f"--evaluation.general_paths={config.evaluation.general_paths}",
        "--corpus.heldout_fraction=0",
        "--training.sequence_length=64",
        "--evaluation.sequence_length=64",
        f"--storage.root={config.storage.root}",
    ]
    carry_out(VOCABULARY_JOB, with_action(flags))
    out, err = capsys.readouterr()
    line = json.loads(out)
    domains = line["metrics"]["domains"]
    assert list(domains) == ["(general)", "corpus"]
    worst = domains["corpus"]["worst"][0]
    assert (worst["word"], worst["count"], [piece.strip("#") for piece in worst["pieces"]]) == (
        "hepatitis",
        20,
        [*"hepatitis"],
    )
    assert domains["corpus"]["length_overhead"] > 0.1
    assert domains["corpus"]["curve"][-1]["compute_saved"] > 0
    assert (Path(line["path"]) / "vocabulary.png").stat().st_size > 5_000
    assert "hepatitis" in err
    assert "(elbow)" in err
    record = load_record(Path(line["path"]))
    assert record
    general, corpus, table, figures, *_ = read_result(Analyzed, record).blocks(record)
    assert isinstance(general, TextBlock)
    assert "of the words of general text into several tokens" in general.text
    assert isinstance(corpus, TextBlock)
    assert "of the words of corpus into several tokens" in corpus.text
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["(general)", "corpus"]
    assert isinstance(figures, Figures)
    (svg, _), *_ = figures.drawings
    assert svg.startswith("<svg")


def test_a_corpus_without_words_is_refused(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "domain.jsonl", [{"text": "?!"}])
    stage, store = change_vocabulary(Context.of(config)), Context.of(config).store
    with pytest.raises(DataError, match="corpus contain no words"):
        ensure(stage, store)
