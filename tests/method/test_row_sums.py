"""Tests that sums from several devices and domains are merged into means."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapt.method.row_sums import join_sums


def test_domains_have_equal_weights_and_parts_count_by_examples(tmp_path: Path) -> None:
    tensors = [{"w": torch.full((2,), value), "b": torch.tensor([value])} for value in (1.0, 5.0, 30.0)]
    names = [tmp_path / f"part-{number}.safetensors" for number in range(3)]
    for sums, name in zip(tensors, names, strict=True):
        save_file(sums, name)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert join_sums(names[:2], 3, None, first) == 1
    assert load_file(first)["w"].tolist() == [2.0, 2.0]
    assert join_sums(names[2:], 3, first, second) == 2
    assert load_file(second)["b"].tolist() == [(2 + 10) / 2]
    assert join_sums(names[2:], 30, second, third) == 3
    assert load_file(third)["b"].tolist() == pytest.approx([(2 + 10 + 1) / 3])
