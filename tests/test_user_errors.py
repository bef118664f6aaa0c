"""Errors from Ray's processes: our own errors arrive unchanged, and lack of memory becomes one of our errors."""

import pickle

import pytest
import ray
import torch
from ray.exceptions import OutOfMemoryError, RayTaskError, WorkerCrashedError

from adapt.ray.runtime import batch_errors, user_errors
from adapt.support.errors import DataError, DeviceMemoryError


def raised_in_task(error: Exception) -> Exception:
    """Returns an error in the form in which `ray.get` raises it."""
    wrapped = RayTaskError("work", "Traceback: with memory_errors(...): out of memory", error)
    return wrapped.as_instanceof_cause()  # type: ignore[no-any-return]


LACKS = {
    "of a GPU": raised_in_task(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
    "of a CPU": raised_in_task(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8")),
    "of Python": raised_in_task(MemoryError()),
    "of a machine": OutOfMemoryError("Task was killed due to the node running low on memory."),
}


@pytest.mark.parametrize("name", LACKS)
def test_lack_of_memory_suggests_settings_that_need_less(name: str) -> None:
    with pytest.raises(DeviceMemoryError, match="ran out of memory") as caught, user_errors("take fewer", 8):
        raise LACKS[name]
    assert (caught.value.fix, caught.value.micro_batch) == ("take fewer", 8)
    assert ("Ray killed" in caught.value.what) == (name == "of a machine")


def test_our_own_errors_arrive_unchanged() -> None:
    with pytest.raises(DataError, match="no text") as caught, user_errors("take fewer"):
        raise raised_in_task(pickle.loads(pickle.dumps(DataError("no text", "bring some"))))
    assert type(caught.value) is DataError


@pytest.mark.parametrize("error", [raised_in_task(ValueError("shapes")), WorkerCrashedError()])
def test_other_errors_are_not_changed(error: Exception) -> None:
    """Errors with other causes are not changed, even if their traceback mentions memory."""
    with pytest.raises(type(error)), user_errors("take fewer"):
        raise error


@pytest.mark.usefixtures("ray_cluster")
def test_a_task_that_ray_ends_for_lack_of_memory_raises_our_error() -> None:
    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(DeviceMemoryError), user_errors():
        ray.get(ray.remote(work).remote())


def test_a_lack_of_memory_names_the_field_with_the_size_of_batches() -> None:
    with pytest.raises(DeviceMemoryError) as caught, batch_errors("harness.batch_size"):
        raise RuntimeError("CUDA out of memory")
    assert caught.value.fix.startswith("lower harness.batch_size")
    assert caught.value.field == "harness.batch_size"
    with pytest.raises(DeviceMemoryError, match="use machines with more memory") as caught, batch_errors(None):
        raise MemoryError
    assert "lower" not in caught.value.fix
