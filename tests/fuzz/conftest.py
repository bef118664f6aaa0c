"""Provides a tiny model with a lossless tokenizer, and the command-line options of long runs."""

from pathlib import Path

import pytest

from tests.tokenizers import roberta


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="the first world of the longer form")
    parser.addoption("--minutes", type=float, default=None, help="how long to look at further worlds; 0 is one world")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a read-only folder with a random RoBERTa for 128 tokens and a byte-level tokenizer."""
    import torch
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

    folder = tmp_path_factory.mktemp("models") / "tiny-roberta"
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    special = {f"{name}_token": token for name, token in names.items()}
    PreTrainedTokenizerFast(tokenizer_object=roberta(), **special).save_pretrained(folder)
    config = RobertaConfig(
        vocab_size=roberta().get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=130,
        pad_token_id=1,
    )
    with torch.random.fork_rng():
        RobertaForMaskedLM(config).save_pretrained(folder)
    return folder
