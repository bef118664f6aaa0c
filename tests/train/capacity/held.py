"""Counts the memory that an engine holds on a rank."""

import gc
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensor
from transformers import BertConfig, BertForMaskedLM

from adapt.config import TrainingConfig
from adapt.train.capacity.memory import BUCKET
from adapt.train.engine import Engine

VOCABULARY, LENGTH = 3000, 16


def model() -> BertForMaskedLM:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=2,
            intermediate_size=256,
            max_position_embeddings=LENGTH,
        )
    )


def most_held(zero_stage: int) -> tuple[int, int]:
    """Returns the peak memory [bytes] of all tensors except DeepSpeed's gradient bucket, and of this bucket."""
    gc.collect()
    gc.freeze()  # excludes existing objects from gc, because there are many in a process that has compiled models
    engine = Engine(model().train(), TrainingConfig(), zero_stage, "fp32", 2, 2)
    tokens = torch.randint(5, VOCABULARY, (2, LENGTH))
    most, buckets = [], [0]

    def held() -> list[int]:
        return list(_storages().values())

    def note_bucket(*_: object) -> None:  # runs in the backward pass, after which the bucket may be freed
        buckets.append(sum(size for size in held() if size == 4 * BUCKET))

    engine._engine.module.bert.encoder.layer[0].register_full_backward_pre_hook(note_bucket)
    for _ in range(4):  # two steps of two passes: the optimizer's state exists from the second step on
        engine.backward(engine.model(input_ids=tokens, labels=tokens).loss)
        most.append(min(sum(size for size in held() if size != 4 * BUCKET) for _ in settling()))
        engine.step(1e-3)
    return max(most), max(buckets)


def settling() -> Iterator[None]:
    """Yields three times within 40 ms, so that the caller can measure memory three times.

    A gloo thread may keep the buffer of an all-reduce, which is as large as all gradients, for a moment after the call
    has returned. Later measurements do not contain the buffer.
    """
    for pause in (0.0, 0.01, 0.03):
        time.sleep(pause)
        yield


def _storages() -> dict[int, int]:
    gc.collect()
    found: dict[int, int] = {}
    for each in gc.get_objects():
        # fake tensors of the compiler hold no memory
        if isinstance(each, torch.Tensor) and not isinstance(each, FakeTensor):
            for tensor in (each, _gradient(each)):
                if tensor is not None:
                    found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return found


def _gradient(tensor: Any) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None
