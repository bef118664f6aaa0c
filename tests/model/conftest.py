"""Provides fixtures for tiny random checkpoints in a temporary folder and for captured output."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import BertForMaskedLM

from tests.model.checkpoints import bert_config, write_tokenizer


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """Writes a tiny BertForMaskedLM with its tokenizer and returns the folder. The embeddings have 3 unused rows."""
    torch.manual_seed(0)
    folder = tmp_path / "bert"
    BertForMaskedLM(bert_config()).save_pretrained(folder)
    return write_tokenizer(folder)


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Returns a function that returns the log of `transformers` and the terminal output since its last call."""
    # caplog needs its own handler here, because this logger does not propagate messages
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)

    def collect() -> str:
        text = caplog.text + "".join(capfd.readouterr())
        caplog.clear()
        return text

    yield collect
    logger.removeHandler(caplog.handler)


@pytest.fixture
def edit_config() -> Callable[..., None]:
    """Returns a function that changes fields of a folder's config.json."""

    def edit(folder: Path, **changes: object) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit
