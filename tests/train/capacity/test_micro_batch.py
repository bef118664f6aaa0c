"""Tests the micro-batch that all ranks agree on, and the trial passes that precede the choice."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from adapt.config import Config, ObjectiveConfig, ResourcesConfig, TrainingConfig, Workers
from adapt.method.base import Method
from adapt.method.collectives import is_alone
from adapt.model.packing.isolation import keep_documents_apart
from adapt.objective.objective import CausalLanguageModelling
from adapt.train.capacity import micro_batch as module
from adapt.train.capacity.device import Device
from adapt.train.capacity.memory import GIB
from adapt.train.capacity.micro_batch import RankPlace, largest_that_runs, passes, trial_pass
from adapt.train.failure import PASS_FILE
from tests.model.architectures import random_model
from tests.train.capacity.test_memory import ROBERTA

CPU = torch.device("cpu")


def config(workers: Workers | None = None, **changes: Any) -> Config:
    training = {"global_batch_size": 512, "sequence_length": 64, **changes}
    return Config(
        objective=ObjectiveConfig(kind="causal"),
        training=TrainingConfig(**training),
        resources=ResourcesConfig(workers=workers or dist.get_world_size()),
    )


def test_the_first_size_that_runs_is_chosen() -> None:
    tried = []

    def run(size: int) -> None:
        tried.append(size)
        if size > 3:
            raise torch.OutOfMemoryError

    assert largest_that_runs(run, [8, 4, 2, 1]) == 2
    assert tried == [8, 4, 2]
    # if even a micro-batch of 1 fails, 1 is chosen, and training then reports the error
    assert largest_that_runs(lambda _: run(9), [2, 1]) == 1
    with pytest.raises(RuntimeError, match="another"):
        largest_that_runs(fail, [2, 1])


def fail(size: int) -> None:
    raise RuntimeError("another error")


class Noted(Method):
    """Imitates a method that adds a term to the loss. Checks that a rank calls it without waiting for other ranks."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def losses(self, model, parts, objective, step, predictions):
        assert is_alone()
        self.calls.append("losses")
        for loss, _ in super().losses(model, parts, objective, step, predictions):
            yield loss, 2 * loss
            self.calls.append("backward")

    def report(self):
        assert is_alone()
        self.calls.append("report")
        return {}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trial_runs_backward_and_frees_its_memory(precision: Any) -> None:
    model = random_model("gpt2")
    keep_documents_apart(model.eval())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    reached = []
    model.transformer.wte.weight.register_hook(lambda _: reached.append(True))
    method = Noted()
    trial_pass(model.train(), CausalLanguageModelling(), method, 3, 64, precision, reserved=1000)
    assert reached
    assert method.calls == ["losses", "backward", "report"]
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def chosen(
    memory_gib: list[float], fails_above: list[int] | None, training: dict[str, Any], folder: Path | None = None
) -> tuple[int, int]:
    """Returns the micro-batch and the number of accumulation steps that a rank with an imitated device chooses.

    The device is a GPU if `fails_above` is set. A trial then runs out of memory if it has more rows than the rank's
    entry in `fails_above`.
    """
    folder = folder or Path(tempfile.mkdtemp())
    rank = dist.get_rank()
    kind = "cuda" if fails_above else "cpu"

    def pretended(*_: Any) -> Device:
        return Device(kind, int(memory_gib[rank] * GIB))

    def trial(model: Any, objective: Any, method: Any, rows: int, *_: Any) -> None:
        if rank == 0:
            assert json.loads((folder / PASS_FILE).read_text()) == {"micro_batch": rows}
        if rows > fails_above[rank]:
            raise torch.OutOfMemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "found", pretended)
        patch.setattr(module, "trial_pass", trial)
        place = RankPlace(CPU, "fp32", 1)
        model = torch.nn.Identity()
        return passes(config(**training), ROBERTA, model, CausalLanguageModelling(), Method(), place, None, folder)


def test_all_ranks_use_the_size_of_the_smallest_device(ranks) -> None:
    group = ranks(2)
    alike = group.run(chosen, [64.0, 64.0], None, {})
    assert alike == [(128, 2)] * 2  # 128 sequences of 64 tokens are the 8,192 tokens that a CPU pass may have
    small = group.run(chosen, [64.0, 6.0], None, {})
    assert small[0] == small[1]
    assert small[0][0] < 128
    assert small[0][0] * small[0][1] == 256


def test_a_trial_that_fails_on_one_rank_counts_for_all(ranks) -> None:
    assert ranks(2).run(chosen, [64.0, 64.0], [999, 40], {}) == [(32, 8)] * 2


def test_a_size_is_recorded_only_while_it_is_tried(ranks, tmp_path: Path) -> None:
    assert ranks(1).run(chosen, [64.0], [40], {}, tmp_path) == [(32, 16)]
    assert not (tmp_path / PASS_FILE).exists()


def test_the_rows_of_a_pass_do_not_depend_on_the_number_of_ranks(ranks) -> None:
    settings = {"workers": (1, 3), "global_batch_size": 384}
    for size in ("auto", 40):
        found = [ranks(world).run(chosen, [64.0] * 3, None, {**settings, "micro_batch": size})[0] for world in (1, 2)]
        ((alone, all_passes), (shared, half)) = found
        assert alone == shared == {"auto": 64, 40: 32}[size]
        assert (alone * all_passes, shared * half) == (384, 192)


def test_a_configured_size_is_used(ranks) -> None:
    assert ranks(2).run(chosen, [0.1, 0.1], [1, 1], {"micro_batch": 64}) == [(64, 4)] * 2
