"""Compares the loss of an ensemble, which averages the probabilities of several models, with plain torch."""

import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from adapt.config import Config, EvaluationConfig, ObjectiveConfig
from adapt.evaluate import measure_model
from adapt.evaluate.losses import SAMPLE_SEED, Heldout
from adapt.evaluate.measure_model import EnsembleMeasurement, MeanProbability
from adapt.model.additions.domain_modules import attach_adapters, attach_domains
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from adapt.support.errors import ModelError


def test_the_loss_is_that_of_the_mean_probability_of_each_token() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 11, generator=draw, dtype=torch.float64) * 4
    targets = torch.randint(11, (7,), generator=draw)
    mean = MeanProbability()
    for of_model in logits:
        mean.add(cross_entropy(of_model, targets, reduction="none").numpy())
    mixed = logits.softmax(-1).mean(0)
    np.testing.assert_allclose(mixed.sum(-1), 1.0)
    np.testing.assert_allclose(mean.losses(), -mixed.log().gather(1, targets[:, None])[:, 0].numpy())


def test_improbable_tokens_do_not_overflow() -> None:
    mean = MeanProbability()
    for losses in ([2000.0, 1.0], [3000.0, 1.0]):
        mean.add(np.array(losses))
    np.testing.assert_allclose(mean.losses(), [2000 + np.log(2), 1.0])


@pytest.fixture
def models(tiny_bert: Path, tmp_path: Path) -> list[Path]:
    """Returns two folders of models with different weights."""
    other = Path(shutil.copytree(tiny_bert, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    save_file({name: each.flip(0).contiguous() for name, each in weights.items()}, other / "model.safetensors")
    return [tiny_bert, other]


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Heldout:
    """Returns five documents, which replace the documents of a prepared corpus."""
    numbers = np.random.default_rng(0)
    own = Heldout(list(range(5)), [numbers.integers(8, 30, 12 + n) for n in range(5)])
    monkeypatch.setattr(Heldout, "sample", classmethod(lambda *_: own))
    for place in ("ray.runtime", "evaluate.evaluation_task"):  # the replaced function would start Ray
        monkeypatch.setattr(f"adapt.{place}.hide_unreserved_gpus", lambda: None)
    return own


def measured(config: Config, models: list[Path]) -> dict[str, list[float]]:
    given = EnsembleMeasurement(config, tuple(Pretrained(folder, folder) for folder in models), {"domain": "unused"})
    losses: dict[str, dict[str, list[float]]] = measure_model.measure_here(given)
    return losses["domain"]


def test_documents_have_the_loss_of_the_mean_of_transformers_own_probabilities(
    models: list[Path], sample: Heldout
) -> None:
    config = Config(evaluation=EvaluationConfig(sequence_length=32, micro_batch=2))
    found = measured(config, models)
    objective = make(ObjectiveConfig(), load_tokenizer(models[0]), SAMPLE_SEED)
    expected, counts = np.zeros(5), np.zeros(5, int)
    for index, batch in sample.batches(32, 2):
        seen: Any = objective.corrupt(batch)
        with torch.no_grad():
            probabilities = [
                load_model(folder)(input_ids=seen.input_ids, attention_mask=seen.real.long()).logits.softmax(-1)
                for folder in models
            ]
        mean = torch.stack(probabilities).mean(0)[seen.positions]
        losses = -mean.gather(1, seen.targets[:, None])[:, 0].log()
        rows = index[seen.positions.nonzero()[:, 0].numpy()]
        np.add.at(expected, rows, losses.double().numpy())
        np.add.at(counts, rows, 1)
    assert found["counts"] == counts.tolist()
    np.testing.assert_allclose(found["losses"], expected, rtol=1e-4)
    single = [np.sum(measured(config, [folder] * 2)["losses"]) for folder in models]
    assert sum(found["losses"]) < max(single)


def test_a_model_is_freed_before_the_next_one_is_loaded(
    models: list[Path], sample: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[weakref.ref[Any]] = []

    def load(folder: Path, *more: Any) -> Any:
        gc.collect()
        assert [model() for model in loaded] == [None] * len(loaded)
        model = load_model(folder)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr("adapt.objective.objective.load_model", load)
    measured(Config(evaluation=EvaluationConfig(sequence_length=32, micro_batch=2)), models)
    assert len(loaded) == 2


def test_a_model_with_parts_for_domains_is_refused(
    models: list[Path], sample: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_parts(folder: Path, *more: Any) -> Any:
        model = load_model(folder)
        attach_adapters(model, 2, 4, "sequential", "both", 1.0)
        attach_domains(model, ["first", "second"])
        return model

    monkeypatch.setattr("adapt.objective.objective.load_model", with_parts)
    with pytest.raises(ModelError, match="separate parameters for each domain"):
        measured(Config(evaluation=EvaluationConfig(sequence_length=32)), models)
