"""Threads that build models at the same time get what they would get by themselves."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from adapt.model.load import load_model


def test_threads_do_not_disturb_each_other(tiny_bert: Path) -> None:
    """Without waiting, next to every second one lacks the weights that are tied."""
    alone = load_model(tiny_bert).state_dict()
    with ThreadPoolExecutor(2) as threads:
        for model in threads.map(load_model, [tiny_bert] * 8):
            assert all(torch.equal(weight, alone[name]) for name, weight in model.state_dict().items())
