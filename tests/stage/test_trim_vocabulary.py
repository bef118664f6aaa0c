"""Tests of models with a trimmed vocabulary, and of models that are built from scratch with a new vocabulary."""

from pathlib import Path

import pytest
import torch

from adapt.config import Config
from adapt.job.measuring_jobs import VOCABULARY_JOB, change_vocabulary
from adapt.model import load
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.support.errors import ConfigError
from tests.samples import write
from tests.show.shown import show_result
from tests.stage.test_extend_vocabulary import asking, config  # noqa: F401  a fixture

TEXT = "the model and the data, hepatitis"


def test_a_trimmed_model_predicts_the_same(
    config: Config,  # noqa: F811
    tiny_bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[Path] = []
    read = load.read_weights
    monkeypatch.setattr(load, "read_weights", lambda *given: reads.append(given[1]) or read(*given))
    write(tmp_path / "domain.jsonl", [{"text": TEXT}])
    (tmp_path / "keep.txt").write_text("gradient\n")
    context = Context.of(asking(config, action="trim", keep=str(tmp_path / "keep.txt")))
    finished = ensure(change_vocabulary(context), context.store)
    assert len(reads) == 1
    small, old = load_tokenizer(finished.path), load_tokenizer(tiny_bert)
    assert small.tokenize(TEXT) == old.tokenize(TEXT)
    assert "gradient" in small.get_vocab()
    assert "language" not in small.get_vocab()
    assert (len(small), len(old)) == (finished.result.vocabulary, finished.result.before)
    model, base = load_model(finished.path), load_model(tiny_bert)
    assert model.config.vocab_size == len(small)
    assert finished.result.parameters_saved == base.num_parameters() - model.num_parameters() > 0
    kept = [old.get_vocab()[token] for token in small.convert_ids_to_tokens(range(len(small)))]
    with torch.no_grad():
        after = model(**small(TEXT, return_tensors="pt")).logits
        before = base(**old(TEXT, return_tensors="pt")).logits
    assert torch.allclose(after, before[..., kept], atol=1e-6)
    show_result(finished)
    assert "fewer parameters" in capsys.readouterr().err


def test_a_missing_file_is_refused(config: Config) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match=r"vocabulary\.keep: there is no file none\.txt"):
        change_vocabulary(Context.of(asking(config, action="trim", keep="none.txt")))


def test_a_model_from_scratch_can_be_trained(config: Config, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    context = Context.of(asking(config, action="scratch", size=120))
    stage = change_vocabulary(context)
    finished = ensure(stage, context.store)
    assert finished.result.vocabulary == len(load_tokenizer(finished.path)) <= 120
    assert finished.result.parameters == load_model(finished.path).num_parameters()
    assert VOCABULARY_JOB.training
    assert VOCABULARY_JOB.training(stage) is stage
    show_result(finished)
    assert "random parameters" in capsys.readouterr().err


def test_scratch_refuses_an_elbow(config: Config) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="scratch builds a new vocabulary"):
        change_vocabulary(Context.of(asking(config, action="scratch", size="elbow")))
