"""Compares the communication model of benchmarks/scale.py with the bytes that simulated collectives send."""

import re
from pathlib import Path

import numpy as np
import pytest

from adapt.runner import Store, ensure
from adapt.runner.ensure import plan_stages
from benchmarks import scale

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "develop" / "scale.md").read_text("utf-8")


class Ring:
    """Devices in a ring. Each device sends only to the next device, and counts the sent bytes."""

    def __init__(self, devices: int) -> None:
        self.devices, self.sent = devices, [0] * devices

    def _pass_on(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        for device, part in enumerate(parts):
            self.sent[device] += part.nbytes
        return [parts[device - 1] for device in range(self.devices)]

    def reduce_scatter(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """Sums the values over all devices. Returns, for each device, its own part of the sum."""
        parts = [np.split(value, self.devices) for value in values]
        moving = [parts[device][device - 1] for device in range(self.devices)]
        for step in range(2, self.devices + 1):
            moving = self._pass_on(moving)
            moving = [parts[device][device - step] + part for device, part in enumerate(moving)]
        return moving

    def all_gather(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """Returns, for each device, the parts of all devices."""
        known = [{device: part} for device, part in enumerate(parts)]
        for step in range(self.devices - 1):
            moved = self._pass_on([known[device][(device - step) % self.devices] for device in range(self.devices)])
            for device, part in enumerate(moved):
                known[device][(device - step - 1) % self.devices] = part
        return [np.concatenate([each[device] for device in range(self.devices)]) for each in known]


def step(ring: Ring, zero_stage: int, passes: int, weights: np.ndarray, gradients: list[list[np.ndarray]]) -> None:
    """Lets the devices exchange gradients and weights as in a step of ZeRO, and checks the results on all devices.

    Args:
        ring: the devices.
        zero_stage: ZeRO stage.
        passes: number of micro-batches.
        weights: all weights.
        gradients: gradient of each pass of each device.
    """
    total = sum(each for of_device in gradients for each in of_device)
    shards = np.split(weights, ring.devices)

    def gather() -> None:
        for found in ring.all_gather(shards):
            np.testing.assert_array_equal(found, weights)

    if zero_stage < 2:
        sums = ring.reduce_scatter([np.sum(of_device, axis=0) for of_device in gradients])
    else:
        sums = [np.zeros_like(shards[0]) for _ in range(ring.devices)]
        for number in range(passes):
            # ZeRO 3 gathers the weights before the forward and before the backward pass
            for _ in range(2 if zero_stage == 3 else 0):
                gather()
            parts = ring.reduce_scatter([of_device[number] for of_device in gradients])
            sums = [one + other for one, other in zip(sums, parts, strict=True)]
    for found, expected in zip(sums, np.split(total, ring.devices), strict=True):
        np.testing.assert_array_equal(found, expected)
    if zero_stage == 0:
        ring.all_gather(sums)  # the all-gather is the second half of an all-reduce
    elif zero_stage < 3:
        gather()


@pytest.mark.parametrize("zero_stage", range(4))
@pytest.mark.parametrize(("devices", "passes"), [(2, 1), (4, 3), (8, 2)])
def test_bytes_are_those_that_devices_in_a_ring_send(zero_stage: int, devices: int, passes: int) -> None:
    draw = np.random.default_rng(0)
    parameters = 16 * devices
    ring, weights = Ring(devices), draw.normal(size=parameters).astype(np.float32)
    # the values are integers, so that sums are exact
    whole = draw.integers(-9, 9, (devices, passes, parameters)).astype(np.float32)
    step(ring, zero_stage, passes, weights, [list(of_device) for of_device in whole])
    assert {*ring.sent} == {scale.sent_bytes(parameters, devices, zero_stage, passes)}


def test_dimensions_are_those_of_roberta_base() -> None:
    import torch
    from transformers import RobertaConfig, RobertaForMaskedLM

    with torch.device("meta"):
        model = RobertaForMaskedLM(RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1))
    assert scale.roberta_base().parameters == model.num_parameters()


def test_rows_of_all_passes_are_the_batch() -> None:
    assert [scale.passes_of(devices) for devices in scale.GPUS] == [4, 2, 1, 1, 1, 1, 1, 1]


def test_one_machine_needs_less_communication_and_many_machines_more() -> None:
    model = scale.roberta_base()
    shares = [sent / (sent + work) for work, sent in (scale.step_seconds(model, n, 1) for n in scale.GPUS)]
    assert shares == sorted(shares)


def test_the_page_shows_the_table_of_the_script() -> None:
    (table,) = re.findall(r"<!-- dapt: begin -->\n\n(.*)\n\n<!-- dapt: end -->", PAGE, re.DOTALL)
    assert table == scale.dapt_table()


def test_a_long_chain_runs_and_is_planned_without_nested_calls(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for length in (1500, 1501):  # Python allows 1,000 nested calls
        last = scale.chained(length)
        assert ensure(last, store).result.number == length - 1
    assert len(plan_stages(last, store)) == 1501
    assert len(list(tmp_path.glob("trivial/*/stage.json"))) == 1501
