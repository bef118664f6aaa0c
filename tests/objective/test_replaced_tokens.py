"""Tests replaced-token detection: its loss against a direct computation, random numbers, metrics, and refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_score, recall_score, roc_auc_score
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoTokenizer

from adapt.config import Config, MethodConfig, ModelConfig, ObjectiveConfig, SelectConfig, TrainingConfig
from adapt.job import JOBS
from adapt.method.table import check_method
from adapt.model.linear_losses import cross_entropy_and_samples, linear_cross_entropy
from adapt.model.size import ModelSize
from adapt.objective.masking import make
from adapt.objective.objective import Batch
from adapt.objective.replaced_tokens import detection
from adapt.objective.table import RtdOptions, check_objective_fits, with_generator
from adapt.parse import parse
from adapt.support.errors import ConfigError
from tests.runner.made import made_up

RTD = Config(objective=ObjectiveConfig(kind="rtd"))


def batch(rows: int = 4, length: int = 24) -> Batch:
    starts = np.zeros((rows, length), bool)
    starts[:, [0, 10]] = True
    lengths = np.array([length, length, length - 5, length - 9][:rows])
    tokens = np.random.default_rng(0).integers(50, 150, (rows, length))
    columns = {"tokens": tokens, "lengths": lengths, "epochs": np.zeros(rows), "rows": np.arange(rows) + 7}
    return Batch.of({**columns, "starts": starts})


class Pair(nn.Module):
    """Imitates a detector. Its scores and its replaced tokens are functions of the tokens."""

    def forward(self, packed: Any, positions: Any, targets: Any, draws: Any) -> tuple[Any, Any, Any]:
        logits = packed.input_ids[0].float() / 100 - 0.8
        replaced = torch.zeros_like(logits, dtype=torch.bool)
        replaced[positions] = draws > 0.3
        return targets.float().sum() / 50, logits, replaced


def test_the_loss_is_the_generators_mean_and_lambda_times_the_mean_over_all_tokens(tiny_bert: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    objective: Any = make(RTD.objective, tokenizer, 3, RtdOptions(weight=7.0))
    corrupted = objective.corrupt(batch())
    count, tokens = len(corrupted.targets), int(corrupted.real.sum())
    masked, logits, replaced = Pair()(corrupted.packed(), corrupted.asked(), corrupted.targets, corrupted.draws)
    assert 0 < replaced.sum() < count
    wanted = masked / count + 7 * binary_cross_entropy_with_logits(logits, replaced.float())
    parts = replace(corrupted, share=count / tokens).split(1)
    for pieces in ([corrupted], parts):
        total = sum(objective.loss(Pair(), piece) for piece in pieces)
        means = objective.report()
        assert means["generator_loss"] == pytest.approx(float(masked) / count, rel=1e-5)
        assert means["generator_loss"] + 7 * means["discriminator_loss"] == pytest.approx(float(wanted), rel=1e-5)
        assert float(total) / count == pytest.approx(float(wanted), rel=1e-5)
    assert len(objective.losses(Pair(), corrupted)) == objective.measured(corrupted).sum() == tokens


def test_all_chosen_tokens_are_masked_and_draws_depend_on_seed_and_row_alone(tiny_bert: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    objective, other = (make(RTD.objective, tokenizer, seed, RtdOptions()) for seed in (3, 4))
    whole = objective.corrupt(batch())
    assert (whole.input_ids[whole.positions] == tokenizer.mask_token_id).all()
    assert (whole.input_ids[~whole.positions] == batch().tokens[~whole.positions]).all()
    assert whole.draws is not None
    first = objective.corrupt(batch(2))
    assert first.draws is not None
    assert torch.equal(first.draws, whole.draws[: len(first.draws)])
    assert not torch.equal(other.corrupt(batch()).draws, whole.draws)  # type: ignore[arg-type]


def test_tokens_are_drawn_with_the_models_probabilities() -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(1, 6), torch.randn(9, 6), torch.randn(9)
    draws = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    states, targets = hidden.expand(len(draws), -1).contiguous(), torch.randint(9, (len(draws),))
    total, samples = cross_entropy_and_samples(states, weight, bias, targets, draws)
    shares = torch.bincount(samples, minlength=9) / len(draws)
    torch.testing.assert_close(shares, torch.softmax(hidden @ weight.T + bias, 1)[0], rtol=0, atol=1e-4)
    assert torch.equal(total, linear_cross_entropy(states, weight, bias, targets)[0])


def test_figures_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    replaced = rng.random(300) < 0.2
    logits = np.round(rng.normal(replaced - 0.5, 1), 1)  # rounding makes some scores equal
    found = detection(logits, replaced)
    assert found == pytest.approx(
        {
            "replaced": replaced.mean(),
            "recall": recall_score(replaced, logits > 0),
            "precision": precision_score(replaced, logits > 0),
            "auc": roc_auc_score(replaced, logits),
        }
    )
    assert detection(-np.ones(3), np.zeros(3, bool)) == {"replaced": 0.0}


def test_memory_and_work_count_the_generator() -> None:
    size = replace(
        made_up(ModelSize), parameters=1000, layer_parameters=600, layers=6, hidden=10, attention=10, vocabulary=20,
        embedding_parameters=200,
    )  # fmt: skip
    both = with_generator(RTD, size, None)
    shared = with_generator(replace(RTD, objective_options=RtdOptions(embeddings="shared")), size, None)
    assert both.layers == 6 + 2
    assert both.layer_parameters == 600 + 200 + 100  # the last 100 are the detection head's weights
    assert both.parameters == 1000 + 200 + 200 + 100
    assert shared.parameters == both.parameters - 200
    assert with_generator(Config(), size, None) == size


@pytest.mark.parametrize(
    "changed",
    [
        {"model": ModelConfig(head="new")},
        {"training": TrainingConfig(freeze=["embeddings"])},
        {"training": TrainingConfig(layer_decay=0.9)},
        {"select": SelectConfig(pool_paths=["pool.jsonl"])},
    ],
)
def test_settings_without_effect_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="rtd"):
        check_objective_fits(replace(RTD, **changed))


def test_methods_and_jobs_that_need_a_language_model_are_refused(tmp_path: Any) -> None:
    check_method(replace(RTD, method=MethodConfig("l2sp")), tmp_path)
    with pytest.raises(ConfigError, match="lora cannot train the two models"):
        check_method(replace(RTD, method=MethodConfig("lora")), tmp_path)
    given = ["--corpus.paths=a", "--objective.kind=rtd", "--rtd.embeddings=shared"]
    assert parse(given, "x").objective_options == RtdOptions(embeddings="shared")
    refusing = {name: job.kind for name, job in JOBS.items() if job.kind.not_rtd}
    assert JOBS.keys() - refusing.keys() == {"dapt", "tapt", "finetune"}
    for name, kind in refusing.items():
        with pytest.raises(ConfigError, match=rf"rtd does not work with dontstop {name}, which {kind.not_rtd}"):
            parse(given, "x", kind)
