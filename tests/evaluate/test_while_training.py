from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from adapt.config import Config, EvaluationConfig, TrainingConfig
from adapt.evaluate.losses import Heldout
from adapt.evaluate.while_training import LEAST_DOCUMENTS, HeldoutText, loss_metrics, sampling_of
from adapt.support.errors import ConfigError
from adapt.train.points import Place

CONFIG = Config(
    training=TrainingConfig(global_batch_size=32, sequence_length=128),
    evaluation=EvaluationConfig(interval_steps=50, sequence_length=128),
)
TEXTS = {"domain": HeldoutText(1000, 100_000), "general": HeldoutText(1000, 50_000)}


def evaluating(**changes: Any) -> Config:
    return replace(CONFIG, evaluation=replace(CONFIG.evaluation, **changes))


def cost(config: Config, steps: int, interval: int, documents: dict[str, int], lengths: dict[str, float]) -> float:
    """Returns the compute of all measurements as a share of the training run's compute.

    A forward pass costs a third of the compute of a training step.
    """
    points = 1 + -(-steps // interval)
    tokens = points * sum(documents[text] * lengths[text] for text in documents)
    return tokens / 3 / (steps * config.training.global_batch_size * config.training.sequence_length)


@pytest.mark.parametrize("share", [0.005, 0.02, 0.1])
def test_measurements_take_at_most_their_share(share: float) -> None:
    sampling = sampling_of(evaluating(share=share), 0, 1000, TEXTS)
    assert sampling.share == pytest.approx(
        cost(CONFIG, 1000, sampling.interval, sampling.documents, {"domain": 100, "general": 50})
    )
    assert 0.8 * share < sampling.share <= share
    assert sampling.interval == 50


def test_a_small_text_leaves_its_rest_to_the_others() -> None:
    texts = {**TEXTS, "general": HeldoutText(3, 150)}
    sampling = sampling_of(CONFIG, 0, 1000, texts)
    assert sampling.documents["general"] == 3
    assert sampling.documents["domain"] > sampling_of(CONFIG, 0, 1000, TEXTS).documents["domain"]


def test_measurements_become_rarer_before_they_become_small() -> None:
    sampling = sampling_of(evaluating(interval_steps=1), 0, 1000, TEXTS)
    assert sampling.interval > 1
    assert min(sampling.documents.values()) >= LEAST_DOCUMENTS
    assert sampling.share <= 0.02
    assert "evaluation.interval_steps 1 would exceed" in sampling.sentence(1)


def test_at_most_half_of_the_documents_choose_a_model() -> None:
    texts = {"domain": HeldoutText(10, 500)}
    assert sampling_of(CONFIG, 0, 1000, texts).documents == {"domain": 10}
    assert sampling_of(CONFIG, 0, 1000, texts, chooses=True).documents == {"domain": 5}


def test_only_the_beginnings_of_long_documents_count() -> None:
    books = {"domain": HeldoutText(1000, 5_000_000)}
    assert sampling_of(CONFIG, 0, 1000, books).documents["domain"] > LEAST_DOCUMENTS


def test_an_interval_longer_than_the_training_is_refused() -> None:
    with pytest.raises(ConfigError, match="interval_steps is 50, but the training has 40 steps"):
        sampling_of(CONFIG, 0, 40, TEXTS)


def test_a_training_too_short_for_its_share_names_the_share_that_suffices() -> None:
    short = evaluating(interval_steps=2, share=0.001)
    with pytest.raises(ConfigError, match="so short that measuring") as raised:
        sampling_of(short, 0, 10, TEXTS)
    enough = float(raised.value.fix.split("to ")[1].split(" ")[0])
    assert sampling_of(evaluating(interval_steps=2, share=enough), 0, 10, TEXTS).share <= enough


def test_losses_that_are_not_measured_come_with_a_fix() -> None:
    assert loss_metrics(["domain", "general", "before.cs"]) == {
        "domain_loss": "",
        "general_loss": "",
        "past_loss": "",
        "past_loss.cs": "",
    }
    assert "evaluation.general_paths" in loss_metrics(["domain"])["general_loss"]
    assert loss_metrics(["general"])["domain_loss"]


def sample(*lengths: int) -> Heldout:
    return Heldout(list(range(len(lengths))), [np.arange(n) for n in lengths], sizes=[4 * n for n in lengths])


def test_beginnings_are_cut_documents_with_their_share_of_the_bytes() -> None:
    cut = sample(10, 3, 20).beginnings(2, 5)
    assert [len(tokens) for tokens in cut.tokens] == [5, 3]
    assert cut.sizes == [20, 12]


@pytest.mark.parametrize(("documents", "world"), [(6, 2), (5, 2), (1, 3), (7, 4)])
def test_ranks_measure_each_document_once_in_equally_many_rows(documents: int, world: int) -> None:
    places = [Place(CONFIG, None, torch.device("cpu"), 1, rank, world) for rank in range(world)]
    parts = [place.share([*range(1, documents + 1)]) for place in places]
    assert len({len(part) for part, _ in parts}) == 1
    assert sorted(number for part, own in parts for number in part[:own]) == list(range(documents))


def test_a_phase_shorter_than_the_interval_is_measured_at_its_ends() -> None:
    sampling = sampling_of(evaluating(share=0.5), 100, 140, TEXTS, is_phase=True)
    assert sampling.interval == 40
    assert min(sampling.documents.values()) >= LEAST_DOCUMENTS
