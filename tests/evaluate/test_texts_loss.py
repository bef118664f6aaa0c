"""The loss on loose texts is that of the same texts as a held-out sample."""

from pathlib import Path

import numpy as np
import pytest
import torch

from adapt.config import Config, EvaluationConfig, ObjectiveConfig
from adapt.corpus.shards.tokens import write_shard
from adapt.evaluate.mlm_loss import Heldout, heldout_losses
from adapt.evaluate.texts_loss import loss_on
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.mlm import MaskedLanguageModelling

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["mlm", "entity"])
def test_equals_the_heldout_loss(tiny_bert: Path, tmp_path: Path, kind) -> None:
    draw = np.random.default_rng(0)
    texts = [[2, *draw.integers(5, 154, draw.integers(1, 60)).tolist(), 3] for _ in range(12)]
    write_shard(tmp_path / "heldout-000000-000000.arrow", texts, 154)
    model, tokenizer = load_model(tiny_bert), load_tokenizer(tiny_bert)
    evaluation = EvaluationConfig(sequence_length=32)
    sample = Heldout.sample(tmp_path, evaluation)
    in_order = sorted(zip(sample.documents, sample.tokens, strict=True), key=lambda pair: pair[0])
    losses, counts = heldout_losses(
        model, MaskedLanguageModelling(ObjectiveConfig(), tokenizer, 0), sample, evaluation, CPU
    )
    config = Config(objective=ObjectiveConfig(kind=kind), evaluation=evaluation)
    found = loss_on([tokens for _, tokens in in_order], model, tokenizer, config, CPU)
    assert found == pytest.approx(losses.sum() / counts.sum(), abs=1e-5)
