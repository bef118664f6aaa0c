"""Tests a generator and a discriminator in one engine, for any number of ranks and ZeRO stage, and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from adapt.config import ObjectiveConfig
from adapt.method.base import Method
from adapt.model.detector import Detector, share_tables
from adapt.model.packing.isolation import keep_documents_apart, keep_states_apart
from adapt.objective.objective import Batch
from adapt.objective.replaced_tokens import ReplacedTokenDetection
from adapt.objective.table import RtdOptions
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from tests.train.toy import GLOBAL_BATCH, VOCABULARY, Tokenizer, columns, feed, rate, settings

STEPS, SAVED = 4, 2


def pair(embeddings: str) -> Detector:
    """Returns a discriminator of two layers and a generator of one layer.

    The random weights are the same in each call.
    """
    sizes: dict[str, Any] = {"hidden_size": 10, "num_attention_heads": 2, "intermediate_size": 14, "embedding_size": 6}
    config = ElectraConfig(
        vocab_size=VOCABULARY,
        **sizes,
        num_hidden_layers=2,
        max_position_embeddings=16,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        discriminator: Any = ElectraForPreTraining(config).eval()
        generator: Any = ElectraForMaskedLM(ElectraConfig(**{**config.to_dict(), "num_hidden_layers": 1})).eval()
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    keep_documents_apart(generator)
    keep_states_apart(discriminator.base_model)
    share_tables(generator, discriminator, embeddings, "the model")
    return Detector(generator, discriminator).train()


def objective() -> ReplacedTokenDetection:
    made = ReplacedTokenDetection(ObjectiveConfig(kind="rtd", mask_fraction=0.4), Tokenizer(), seed=1)  # type: ignore[arg-type]
    made.options = RtdOptions()
    return made


def train_pair(
    embeddings: str, stage: int, save: Path | None = None, load: Path | None = None
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Trains on the calling rank, and returns the weights and the losses. Saves a checkpoint after SAVED steps."""
    share = GLOBAL_BATCH // dist.get_world_size()
    engine = Engine(pair(embeddings), settings(), stage, "fp32", 2, share // 2)
    loop = Loop(engine, objective(), Method(), settings(), 2, STEPS, seed=5)
    first = engine.load(load)["step"] if load else 0
    losses = []
    for step, rows in enumerate(feed(first, STEPS), first):
        loss, _, _ = loop.step(rows, step, rate(step))
        dist.all_reduce(loss)
        losses.append(loss.item())
        if save and step + 1 == SAVED:
            engine.save(save, {"step": SAVED})
    return engine.full_state(), losses


def train_pairs(cases: list[tuple[Any, ...]]) -> list[tuple[dict[str, torch.Tensor], list[float]]]:
    return [train_pair(*case) for case in cases]


def in_plain_torch(embeddings: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Trains in one process, one pass per step, with the loss of the paper: L_MLM + 50 L_RTD, each a mean."""
    model, training, losses = pair(embeddings), settings(), []
    groups = [
        {"params": [parameter], "weight_decay": training.weight_decay if parameter.ndim > 1 else 0.0}
        for parameter in model.parameters()
    ]
    adamw = torch.optim.AdamW(groups, betas=(training.beta1, training.beta2), eps=training.epsilon, foreach=False)
    for step in range(STEPS):
        seen = objective().corrupt(Batch.of(columns(step)))
        assert seen.draws is not None
        masked, logits, replaced = model(seen.packed(), seen.asked(), seen.targets, seen.draws)
        loss = masked / len(seen.targets) + 50 * binary_cross_entropy_with_logits(logits, replaced.float())
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_gradient_norm)
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.step()
        losses.append(loss.item())
    return dict(model.state_dict()), losses


def assert_same(found: tuple[dict[str, Any], list[float]], wanted: tuple[dict[str, Any], list[float]]) -> None:
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-5)
    for name, weight in found[0].items():
        tolerance = 1e-4 if name.endswith("key.bias") else 3e-5
        torch.testing.assert_close(weight, wanted[0][name], rtol=1e-3, atol=tolerance, msg=name)


@pytest.mark.parametrize("embeddings", ["disentangled", "shared"])
def test_ranks_stages_and_a_resume_train_what_plain_torch_trains(ranks: Any, tmp_path: Path, embeddings: str) -> None:
    wanted = in_plain_torch(embeddings)
    cases = [(embeddings, 0, tmp_path), (embeddings, 0, None, tmp_path), (embeddings, 2), (embeddings, 3)]
    whole, resumed, *sharded = ranks(2).run(train_pairs, cases)[0]
    for found in (whole, *sharded):
        assert_same(found, wanted)
    assert resumed[1] == whole[1][SAVED:]
    assert all(torch.equal(weight, whole[0][name]) for name, weight in resumed[0].items())
