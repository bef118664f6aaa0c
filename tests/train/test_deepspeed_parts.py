"""Tests that a name missing in another version of DeepSpeed ends the run before its first step."""

import runpy
import sys
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import deepspeed
import pytest

from adapt.support.errors import TrainingError
from adapt.train import deepspeed_parts
from tests.train.toy import Case, build

VERSION = deepspeed.__version__


LOST = [  # each case has a run, an object of DeepSpeed, the name to remove from it, and the name in the error message
    (Case(0), "engine", "torch_autocast_z0_gradscaler", "DeepSpeedEngine.torch_autocast_z0_gradscaler"),
    (Case(0), "settings", "load_universal_checkpoint", "DeepSpeedConfig.load_universal_checkpoint"),
    (Case(1), "optimizer", "loss_scale", "DeepSpeedZeroOptimizer.loss_scale"),
    (Case(2), "optimizer", "torch_autocast_gradscaler", "DeepSpeedZeroOptimizer.torch_autocast_gradscaler"),
    (Case(2), "optimizer", "single_partition_of_fp32_groups", "DeepSpeedZeroOptimizer.single_partition_of_fp32_groups"),
    (Case(2), "parameter", "_hp_mapping", "Parameter._hp_mapping"),
    (Case(2), "parameter", "_index_in_param_group", "Parameter._index_in_param_group"),
    (Case(2), "fragment", "hp_fragment", "tensor_fragment.hp_fragment"),
    (Case(2, offload="optimizer"), "optimizer", "norm_for_param_grads", "DeepSpeedZeroOptimizer.norm_for_param_grads"),
    (Case(3), "optimizer", "loss_scale", "DeepSpeedZeroOptimizer_Stage3.loss_scale"),
    (
        Case(3),
        "optimizer",
        "fp32_partitioned_groups_flat",
        "DeepSpeedZeroOptimizer_Stage3.fp32_partitioned_groups_flat",
    ),
    (Case(3), "optimizer", "grad_partitions_flat_buffer", "DeepSpeedZeroOptimizer_Stage3.grad_partitions_flat_buffer"),
]


def refusals() -> list[str]:
    """Returns one error per entry of LOST, each from a run in which one name of DeepSpeed is missing."""
    return [refusal(case, holder, name) for case, holder, name, _ in LOST]


def refusal(case: Case, holder: str, name: str) -> str:
    initialize = deepspeed.initialize

    def lacking(**given: Any) -> Any:
        engine, *others = initialize(**given)
        parameter = next(iter(engine.module.parameters()))
        things = {
            "engine": engine,
            "optimizer": engine.optimizer,
            "settings": engine._config,
            "parameter": parameter,
            "fragment": getattr(parameter, "_hp_mapping", None),
        }
        owner = next(each for each in (things[holder], *type(things[holder]).__mro__) if name in vars(each))
        stack.enter_context(mock.patch.object(owner, name))  # restores the name at the end of the block
        delattr(owner, name)
        return engine, *others

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(deepspeed, "initialize", lacking))
        try:
            build(case)
        except TrainingError as error:
            return str(error)
    return ""


def test_a_missing_name_is_reported_before_the_first_step(ranks) -> None:
    (said,) = ranks(1).run(refusals)
    for message, (*_, named) in zip(said, LOST, strict=True):
        assert f"DeepSpeed {VERSION} has no {named}, which dontstop needs (tested: DeepSpeed " in message
        assert "fix: pip install deepspeed==" in message


def test_a_missing_name_is_never_assigned() -> None:
    engine = SimpleNamespace(loss_scale=1.0)
    deepspeed_parts.assign(engine, "loss_scale", 2.0)
    assert engine.loss_scale == 2.0
    with pytest.raises(TrainingError, match=r"has no SimpleNamespace\.loss_scaling"):
        deepspeed_parts.assign(engine, "loss_scaling", 2.0)
    assert vars(engine) == {"loss_scale": 2.0}


def test_a_missing_switch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed.ops, "__compatible_ops__", {"cpu_adam": True})
    with pytest.raises(TrainingError, match="deepspeed_shm_comm"):
        deepspeed_parts.compile_no_collective()


def test_gpus_need_no_switch_because_they_lack_the_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed.ops, "__compatible_ops__", {"fused_adam": True})
    monkeypatch.setattr(deepspeed_parts, "get_accelerator", lambda: SimpleNamespace(device_name=lambda: "cuda"))
    deepspeed_parts.compile_no_collective()
    assert not deepspeed.ops.__compatible_ops__.get("deepspeed_shm_comm")


def test_a_missing_module_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed.utils.tensor_fragment", None)
    with pytest.raises(TrainingError, match=f"DeepSpeed {VERSION} has no .*tensor_fragment"):
        runpy.run_path(deepspeed_parts.__file__)
