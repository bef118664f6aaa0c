"""Tiny random checkpoints, written to a temporary folder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertForMaskedLM

from tests.model.checkpoints import bert_config, write_tokenizer


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A folder with a tiny BertForMaskedLM, its weights padded by three rows, and its tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path / "bert"
    BertForMaskedLM(bert_config()).save_pretrained(folder)
    return write_tokenizer(folder)


@pytest.fixture
def edit_config() -> Callable[..., None]:
    """Change fields of a folder's config.json."""

    def edit(folder: Path, **changes: object) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit
