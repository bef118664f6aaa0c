"""A model on a device of the cluster, ready to be measured: what the measuring tasks share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from adapt.config import ResourcesConfig
from adapt.model.locate import Pretrained
from adapt.ray.runtime import gpus_per_worker, hide_unreserved_gpus, user_errors
from adapt.train.threads import use_threads

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

T = TypeVar("T")


@dataclass(frozen=True)
class Ready:
    """A model, its tokenizer, and where the model is."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    device: "torch.device"


def ready(pretrained: Pretrained, causal: bool, shared_by: int = 1) -> Ready:
    """Inside a Ray task: loads a model onto the GPU that the task reserved, or the CPUs.

    Args:
        pretrained: the model.
        causal: whether it predicts the next token.
        shared_by: trainings and tasks that share the cores of a machine, this one among them.
    """
    hide_unreserved_gpus()
    import torch

    from adapt.model.load import load_model
    from adapt.model.tokenizer import load_tokenizer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        use_threads(shared_by=shared_by)
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    model = load_model(pretrained.model, causal, pretrained.trust_remote_code)
    torch.nn.Module.to(model, device)
    return Ready(model, tokenizer, device)


def call_on_device(function: Callable[..., T], resources: ResourcesConfig, *arguments: Any) -> T:
    """Calls a function in a Ray task that has one of the cluster's devices, and waits for it."""
    import ray

    task = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(function)
    with user_errors():
        result: T = ray.get(task.remote(*arguments))
        return result
