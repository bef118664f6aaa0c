"""Tests the automatic micro-batch, and the refusal of training runs that do not fit in memory."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.config import Config, MethodConfig, ResourcesConfig, TrainingConfig, Workers
from adapt.method.das.method import DasOptions
from adapt.parse import parse
from adapt.support.errors import ConfigError
from adapt.train.capacity.device import Device
from adapt.train.capacity.memory import (
    CPU_TOKENS,
    GIB,
    GPU_TOKENS,
    USED,
    Demand,
    check_fits,
    estimate,
    fit,
    micro_batch_sizes,
)
from tests.train.capacity.test_memory import ROBERTA


def config(workers: Workers = 1, zero_stage: Any = 0, **training: Any) -> Config:
    return Config(
        training=TrainingConfig(**{"global_batch_size": 256, "sequence_length": 512, **training}),
        resources=ResourcesConfig(workers=workers, zero_stage=zero_stage),
    )


def gpu(gib: float) -> Device:
    return Device("cuda", int(gib * GIB), has_bf16=True)


@given(st.integers(1, 600), st.integers(1, 8), st.floats(3, 200), st.booleans(), st.sampled_from([64, 512, 4096]))
def test_the_largest_that_fits_divides_and_is_fast(
    share: int, workers: int, gib: float, on_gpu: bool, length: int
) -> None:
    job = config(workers, global_batch_size=share * workers, sequence_length=length)
    device = Device("cuda" if on_gpu else "cpu", int(gib * GIB))
    found = fit(job, ROBERTA, device)
    assert found.micro_batch * found.accumulation == share  # the number of rows per global batch is unchanged
    tokens = GPU_TOKENS if on_gpu else CPU_TOKENS

    def total(number: int) -> float:
        return estimate(ROBERTA, Demand.of(job, number, "fp32", on_gpu)).total

    good = [
        number
        for number in range(1, share + 1)
        if share % number == 0 and number * length <= max(tokens, length) and total(number) <= USED * device.memory
    ]
    assert found.micro_batch == max(good, default=1)
    assert found.memory.total == total(found.micro_batch)


def test_a_configured_micro_batch_is_not_changed() -> None:
    found = fit(config(micro_batch=48), ROBERTA, gpu(1))
    assert (found.micro_batch, found.accumulation) == (32, 8)  # 32 is the largest divisor of 256 that is at most 48
    assert not found.fits


def test_sizes_go_down_to_one() -> None:
    assert micro_batch_sizes(config(), on_gpu=False) == [16, 8, 4, 2, 1]
    assert micro_batch_sizes(config(), on_gpu=True) == [128, 64, 32, 16, 8, 4, 2, 1]
    assert micro_batch_sizes(config(global_batch_size=6, workers=2), on_gpu=True) == [3, 1]
    assert micro_batch_sizes(config(sequence_length=16_384), on_gpu=False) == [1]


def test_one_pass_is_tried_first_where_several_cost_more() -> None:
    """DAS tries the whole batch in one pass first, because several passes compute the contrast's views twice.

    The views are computed twice for any number of passes above one.
    """
    das = replace(config(), method=MethodConfig("das"))
    assert micro_batch_sizes(das, on_gpu=False) == [256, 16, 8, 4, 2, 1]
    assert micro_batch_sizes(replace(das, method_options=DasOptions(contrast_weight=0.0)), on_gpu=False) == [
        16,
        8,
        4,
        2,
        1,
    ]
    assert micro_batch_sizes(replace(das, training=TrainingConfig(global_batch_size=8)), on_gpu=False)[0] == 8
    assert fit(das, ROBERTA, gpu(2000)).micro_batch == 256
    assert fit(das, ROBERTA, gpu(80)).micro_batch == 128


def test_short_documents_leave_room_for_larger_micro_batches() -> None:
    machine = Device("cpu", 10 * GIB)
    assert fit(config(), ROBERTA, machine, 40.0).micro_batch > fit(config(), ROBERTA, machine).micro_batch


# --- training runs that are refused because they do not fit

REFUSED: list[tuple[Config, Device, set[str]]] = [
    (config(micro_batch=256), gpu(24), {"training.micro_batch"}),
    (config(), gpu(3.35), {"training.gradient_checkpointing"}),
    (config(micro_batch=64), gpu(3.35), {"training.micro_batch", "training.gradient_checkpointing"}),
]


@pytest.mark.parametrize(("job", "device", "changes"), REFUSED)
def test_a_refusal_names_the_nearest_configuration_that_fits(job: Config, device: Device, changes: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_fits(job, ROBERTA, device)
    assert f"its device has {device.memory / GIB:.1f} GiB" in caught.value.what
    assert "activations" in caught.value.what
    offered = dict(re.findall(r"--(\S+) (\S+)", caught.value.fix))
    assert set(offered) == changes
    check_fits(applied(job, caught.value.fix), ROBERTA, device)  # the configuration with the fix is accepted


def applied(job: Config, fix: str) -> Config:
    """Changes a configuration by the arguments that an error's fix suggests, as the command line would."""
    given = parse(["--corpus.paths=x", *fix.removeprefix("this fits: ").split()], "")
    for name in re.findall(r"--(\S+)", fix):
        section, field = name.split(".")
        value = getattr(getattr(given, section), field)
        job = replace(job, **{section: replace(getattr(job, section), **{field: value})})
    return job


LARGE = replace(ROBERTA, parameters=1_300_000_000, layer_parameters=1_200_000_000, hidden=2048, attention=2048)


@pytest.mark.parametrize(
    ("workers", "device", "changes"),
    [
        (8, gpu(22), {"training.gradient_checkpointing", "resources.zero_stage"}),
        (1, gpu(16), {"training.gradient_checkpointing", "resources.zero_stage", "resources.offload"}),
        (1, Device("cpu", 20 * GIB), {"training.gradient_checkpointing", "resources.workers", "resources.zero_stage"}),
    ],
)
def test_suggested_changes_go_from_harmless_to_expensive(workers: int, device: Device, changes: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_fits(config(workers), LARGE, device)
    assert set(re.findall(r"--(\S+)", caught.value.fix)) == changes, caught.value.fix
    check_fits(applied(config(workers), caught.value.fix), LARGE, device)


def test_a_range_of_workers_must_fit_with_the_fewest() -> None:
    """With the minimum number of workers, each worker holds the largest part of the state.

    One micro-batch is used for all numbers of workers in the range.
    """
    found, few, many = (fit(config(workers, 3), ROBERTA, gpu(24)) for workers in ((2, 8), 2, 8))
    assert found.memory.optimizer == few.memory.optimizer == 4 * many.memory.optimizer
    assert many.micro_batch % found.micro_batch == 0
    with pytest.raises(ConfigError) as caught:
        check_fits(config((1, 4)), LARGE, Device("cpu", 20 * GIB))
    assert "resources.workers [2,4]" in caught.value.fix
    check_fits(applied(config((1, 4)), caught.value.fix), LARGE, Device("cpu", 20 * GIB))


def test_a_refusal_if_no_change_helps() -> None:
    with pytest.raises(ConfigError) as caught:
        check_fits(config(), LARGE, gpu(1))
    assert "resources.device_memory_gib" in caught.value.fix


def test_workers_of_one_machine_share_its_memory() -> None:
    machine = Device("cpu", 8 * GIB, shared_by=4)
    assert machine.memory_per_worker == 2 * GIB
    assert fit(config(4), ROBERTA, machine).available == 2 * GIB
    with pytest.raises(ConfigError) as caught:
        check_fits(config(4), ROBERTA, machine)
    assert "resources.workers" not in caught.value.fix  # more workers would leave less memory for each worker
