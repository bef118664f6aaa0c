"""Converts a checkpoint to one folder per parameter, which any number of ranks can load at any ZeRO stage.

DeepSpeed's own conversion, to "universal" checkpoints, is not sufficient. It does not support stage 0, and its
checkpoints can be loaded only at the stage that wrote them (1 and 2 count as one stage). At stage 3, it gives all
parameters the weight decay of the first parameter group. Therefore, DeepSpeed only joins the shards here, and this
module adds the files that DeepSpeed's loaders need at any stage.
"""

import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from adapt.support.errors import TrainingError
from adapt.train.deepspeed_parts import CLASSES_IN_FILES, VERSION, join_shards

TAG = "state"
"""Subfolder of a checkpoint that holds DeepSpeed's files."""
_MODEL_FILES = "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"  # stages 0 to 2; stage 3
_TENSORS = "fp32", "exp_avg", "exp_avg_sq"
_ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@contextmanager
def only_numbers() -> Iterator[None]:
    """Makes `torch.load` accept only tensors, plain values and four classes of DeepSpeed inside the block.

    DeepSpeed loads its checkpoints as unrestricted pickles, which can run code. An environment variable of PyTorch
    prevents this.

    Raises:
        TrainingError: a file contains an object of another class.
    """
    before = os.environ.get(_ONLY_WEIGHTS)
    os.environ[_ONLY_WEIGHTS] = "1"
    try:
        with torch.serialization.safe_globals(CLASSES_IN_FILES):
            yield
    except pickle.UnpicklingError as error:
        lines = [line.strip() for line in str(error).splitlines() if "Unsupported" in line] or [str(error)]
        raise TrainingError(
            f"the checkpoint contains objects other than tensors and plain values, which could run code: {lines[0]}",
            "delete the checkpoint's folder and run the same command again: it continues from the previous checkpoint",
        ) from error
    finally:
        if before is None:
            del os.environ[_ONLY_WEIGHTS]
        else:
            os.environ[_ONLY_WEIGHTS] = before


@contextmanager
def taken_apart(folder: Path, zero_stage: int, names: Sequence[str]) -> Iterator[Path]:
    """Converts a checkpoint to a temporary copy with one folder per parameter.

    All ranks must call this function. The first rank of each machine does the work.

    Args:
        folder: checkpoint that `Engine.save` wrote.
        zero_stage: ZeRO stage at which the checkpoint was written.
        names: names of the trained parameters, in the optimizer's order.

    Yields:
        Folder of the copy, on this rank's machine.

    Raises:
        TrainingError: the conversion failed on a rank. All ranks raise the error.
    """
    works = os.environ.get("LOCAL_RANK", "0") == "0"
    target, failure = tempfile.mkdtemp(prefix="reshaped-") if works else None, None
    try:
        if target:
            try:
                with only_numbers():
                    _take_apart(folder / TAG, zero_stage, names, Path(target) / TAG)
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
        by_rank: list[tuple[str | None, str | None]] = [(None, None)] * dist.get_world_size()
        dist.all_gather_object(by_rank, (target, failure))
        if any(failures := [failure for _, failure in by_rank if failure]):
            raise TrainingError(f"the checkpoint could not be converted: {failures[0]}")
        try:
            yield Path(
                [path for path, _ in by_rank[: dist.get_rank() + 1] if path][-1]
            )  # the folder of this rank's machine, because the ranks of a machine are consecutive
        finally:
            dist.barrier()
    finally:
        if target:
            shutil.rmtree(target, ignore_errors=True)


def read_parameter(folder: Path, name: str, like: torch.Tensor) -> dict[str, torch.Tensor]:
    """Reads `fp32`, `exp_avg`, `exp_avg_sq` and `step` of a parameter from a converted checkpoint.

    Args:
        folder: folder that `taken_apart` yielded.
        name: name of the parameter.
        like: tensor that has the shape and device of the result.
    """
    source = folder / TAG / "zero" / name
    tensors = {key: _load(source / f"{key}.pt")["param"].view_as(like) for key in _TENSORS}
    return {key: value.to(like.device) for key, value in {**tensors, "step": _load(source / "step.pt")}.items()}


def _take_apart(source: Path, zero_stage: int, names: Sequence[str], target: Path) -> None:
    parameters = target / "zero"
    step = _split(source, names, parameters) if zero_stage == 0 else _join(source, names, target)
    for name in names:
        torch.save(step, parameters / name / "step.pt")

    # DeepSpeed's loaders need these files. Their settings are empty, so that the settings of the configuration apply.
    optimizer = {
        "ds_version": VERSION,
        "param_groups": [{}] * len(names),
        "optimizer_state_dict": {"state": {0: {"step": step}}, "param_groups": [{}]},
    }
    torch.save(optimizer, parameters / "optimizer_state.pt")
    for file in _MODEL_FILES:
        torch.save(
            {"module": {}, "dp_world_size": 1, "mp_world_size": 1, "global_steps": 0, "skipped_steps": 0}, target / file
        )


def _split(source: Path, names: Sequence[str], parameters: Path) -> torch.Tensor:
    """Writes the parameters of a checkpoint of stage 0, which is not sharded. Returns AdamW's step count."""
    saved = _load(source / _MODEL_FILES[0])
    states = saved["optimizer"]["state"]
    for number, name in enumerate(names):
        (parameters / name).mkdir(parents=True)
        for key, value in {**states[number], "fp32": saved["module"][name]}.items():
            torch.save({"param": value.clone()}, parameters / name / f"{key}.pt")
    step: torch.Tensor = states[0]["step"]
    return step


def _join(source: Path, names: Sequence[str], target: Path) -> torch.Tensor:
    """Writes the parameters of a checkpoint of stages 1 to 3 with DeepSpeed. Returns AdamW's step count."""
    join_shards(source, target)
    parameters = target / "zero"
    for file in (parameters / name / f"{key}.pt" for name in names for key in _TENSORS):
        value = _load(file)
        if torch.is_tensor(value):  # at stage 3, the file contains the tensor without a dict around it
            torch.save({"param": value}, file)
    if (parameters / names[0] / "step.pt").exists():
        step: torch.Tensor = _load(parameters / names[0] / "step.pt")
    else:
        step = _load(parameters / "optimizer_state.pt")["optimizer_state_dict"]["state"][0]["step"]
    return step


def _load(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)
