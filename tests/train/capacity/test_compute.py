"""A limit of compute in steps."""

from dataclasses import replace
from math import ceil

import pytest

from adapt.config import Config, MethodConfig, TrainingConfig
from adapt.errors import ConfigError
from adapt.method.das.options import DasOptions
from adapt.train.capacity.compute import with_flops_as_steps
from adapt.train.capacity.flops import training_flops, workload
from tests.train.capacity.test_memory import ROBERTA


def limited(flops: float, **training: object) -> Config:
    return Config(training=TrainingConfig(max_flops=flops, global_batch_size=4, sequence_length=128, **training))


def test_in_closed_form() -> None:
    """Six operations an element of a matrix, of the head a predicted token, and attention's two products.

    Documents have 100 tokens on average.
    """
    a_token = 6 * 84_934_656 + 12 * 768 * 100 * 12 + 6 * 39_193_344 * 0.15
    found = with_flops_as_steps(limited(7.5 * 4 * 128 * a_token), ROBERTA, 100.0).training
    assert (found.max_steps, found.max_flops) == (8, None)
    assert with_flops_as_steps(limited(1.0), ROBERTA, 100.0).training.max_steps == 1


def test_the_first_limit_that_is_reached_counts() -> None:
    a_step = 4 * 128 * training_flops(ROBERTA, workload(Config().objective, 128))
    assert with_flops_as_steps(limited(10 * a_step, max_steps=7), ROBERTA, None).training.max_steps == 7
    both = with_flops_as_steps(limited(10 * a_step, max_steps=70, max_tokens=99), ROBERTA, None).training
    assert (both.max_steps, both.max_tokens) == (10, 99)


def test_a_model_with_more_tokens_takes_fewer_steps() -> None:
    flops = 1000 * 4 * 128 * training_flops(ROBERTA, workload(Config().objective, 128))
    larger = with_flops_as_steps(limited(flops), ROBERTA.with_tokens(10_000), None).training.max_steps
    ratio = (6 * 84_934_656 + 12 * 768 * 128 * 12 + 6 * (39_193_344 + 7_680_000) * 0.15) / (
        6 * 84_934_656 + 12 * 768 * 128 * 12 + 6 * 39_193_344 * 0.15
    )
    assert larger == ceil(1000 / ratio)


def test_what_a_method_adds_counts_and_how_the_work_is_done_does_not() -> None:
    plain = with_flops_as_steps(limited(1e16), ROBERTA, None).training.max_steps or 0
    das = replace(
        limited(1e16, gradient_checkpointing=True, micro_batch=1),
        method=MethodConfig(kind="das"),
        method_options=DasOptions(contrast_cost="exact"),
    )
    slow = with_flops_as_steps(das, ROBERTA, None).training.max_steps or 0
    assert 2 < plain / slow < 3  # two more passes through the layers, without the head
    again = replace(das, training=replace(das.training, gradient_checkpointing=False, micro_batch=4))
    assert with_flops_as_steps(again, ROBERTA, None).training.max_steps == slow


def test_without_a_limit_of_compute_nothing_changes() -> None:
    config = Config(training=TrainingConfig(max_tokens=7))
    assert with_flops_as_steps(config, None, None) is config


def test_a_model_whose_dimensions_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.max_flops is set, but config\.json does not name"):
        with_flops_as_steps(limited(1e9), None, None)
