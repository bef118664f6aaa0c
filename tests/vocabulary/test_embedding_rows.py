"""Tests initial values and logits of new embedding rows, and that all other weights stay the same."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import FunnelConfig, FunnelForMaskedLM

from adapt.config import Config
from adapt.job.measuring_jobs import change_vocabulary
from adapt.model.load import load_base, load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.support.errors import ConfigError, ModelError
from adapt.vocabulary.new_rows import INITS, add_rows, embedding_table, transplant_rows, transplanted
from adapt.vocabulary.word_reader import WordReader
from tests.model.architectures import random_model
from tests.stage.test_extend_vocabulary import asking, config  # noqa: F401  a fixture
from tests.tokenizers import byte_level, unigram, wordpiece

PIECES = {100: [7, 8, 9], 101: [10, 11]}
"""Old pieces of each new token, keyed by the new token's id. The old vocabulary has 100 tokens."""


@pytest.fixture(params=["bert", "roberta", "distilbert", "gpt2", "llama"])
def model(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    return random_model(request.param, vocab_size=100).eval()


def logits(model, ids=(5, 6, 7, 8)):  # type: ignore[no-untyped-def]
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("init", INITS)
def test_logits_of_old_tokens_stay(model, init: str) -> None:  # type: ignore[no-untyped-def]
    before = logits(model)
    add_rows(model, PIECES, 100, init, 0)
    assert model.config.vocab_size == 102
    assert torch.allclose(logits(model)[:, :100], before, atol=1e-6)


def test_the_mean_of_pieces_gives_the_mean_of_their_logits(model) -> None:  # type: ignore[no-untyped-def]
    table = model.get_input_embeddings().weight.detach().clone()
    add_rows(model, PIECES, 100, "mean_subword", 0)
    found, rows = logits(model), model.get_input_embeddings().weight
    for number, pieces in PIECES.items():
        assert torch.allclose(rows[number], table[pieces].mean(0))
        assert torch.allclose(found[:, number], found[:, pieces].mean(1), atol=1e-5)


def test_zero_logits_are_zero(model) -> None:  # type: ignore[no-untyped-def]
    add_rows(model, PIECES, 100, "zero_logit", 0)
    assert torch.equal(logits(model)[:, 100:], torch.zeros(4, 2))


def test_random_rows_have_the_distribution_of_the_table_and_depend_on_the_seed() -> None:
    pieces = {100 + number: [1, 2] for number in range(400)}

    def drawn(seed: int) -> torch.Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = random_model("bert", vocab_size=100)
        table = model.get_input_embeddings().weight
        with torch.no_grad():
            table += 3
        add_rows(model, pieces, 100, "normal", seed)
        rows = model.get_input_embeddings().weight
        old, new = rows[:100], rows[100:]
        assert torch.allclose(new.mean(0), old.mean(0), atol=0.3 * float(old.std()))
        assert torch.allclose(new.std(0), old.std(0), rtol=0.25)
        return new.detach()

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_padding_rows_are_used_first(tiny_bert: Path) -> None:
    model = load_model(tiny_bert)
    size = model.config.vocab_size
    add_rows(model, {size - 2: [5, 6], size - 1: [7, 8]}, size - 2, "mean_subword", 0)
    assert model.config.vocab_size == size


def test_sparse_sums_are_recovered() -> None:
    draws = np.random.default_rng(0)
    anchors, weights = draws.normal(size=(40, 60)), np.zeros((3, 40))
    for row in weights:
        row[draws.choice(40, 4, replace=False)] = draws.normal(size=4)
    tables = [draws.normal(size=(40, 7)), draws.normal(size=40)]
    found = transplanted(weights @ anchors, anchors, tables, terms=4)
    for table, rows in zip(tables, found, strict=True):
        assert np.allclose(rows, weights @ table)
    (single,) = transplanted(weights[:1] @ anchors, anchors, tables[:1], terms=4)
    assert np.allclose(single, weights[:1] @ tables[0])


def test_tokens_of_all_families_have_the_same_keys() -> None:
    keys = [WordReader(build()).keys() for build in (wordpiece, byte_level, unigram)]
    assert {"▁the", "▁value"} <= keys[0].keys() & keys[2].keys()
    assert {"▁t", "ch"} <= keys[1].keys()
    assert {"a", "▁a"} <= keys[0].keys()


def test_a_model_that_is_its_own_donor_gives_the_means_of_pieces(tiny_bert: Path) -> None:
    model, tokenizer = load_model(tiny_bert), load_tokenizer(tiny_bert)
    reader, size = WordReader(tokenizer.backend_tokenizer), len(tokenizer)
    pieces = reader.pieces("hepatitis")
    table = embedding_table(model).detach().clone()
    add_rows(model, {size: pieces}, size, "zero_logit", 0)
    transplant_rows(model, reader, [size], ["hepatitis"], Pretrained(tiny_bert, tiny_bert))
    row, mean = embedding_table(model)[size].detach(), table[list(pieces)].mean(0)
    assert torch.linalg.norm(row - mean) < 0.05 * torch.linalg.norm(mean)


def test_a_donor_need_not_compute_packed_documents(tiny_bert: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(tiny_bert), load_tokenizer(tiny_bert)
    sizes = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 16, "block_sizes": [2, 2, 2], "pad_token_id": 0}
    FunnelForMaskedLM(FunnelConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    reader, size = WordReader(tokenizer.backend_tokenizer), len(tokenizer)
    add_rows(model, {size: reader.pieces("hepatitis")}, size, "zero_logit", 0)
    with pytest.raises(ModelError, match="FunnelModel cannot compute"):
        load_base(tmp_path)
    transplant_rows(model, reader, [size], ["hepatitis"], Pretrained(tmp_path, tmp_path))
    assert embedding_table(model)[size].any()


def test_the_stage_and_its_key(config: Config, tiny_bert: Path) -> None:  # noqa: F811
    asked = asking(config, init="omp", donor=str(tiny_bert))
    context = Context.of(asked)
    stage = change_vocabulary(context)
    assert stage.key != change_vocabulary(Context.of(config)).key
    assert load_model(ensure(stage, context.store).path).config.vocab_size == len(load_tokenizer(tiny_bert)) + 3
    for wrong in (asking(config, init="omp"), asking(config, donor=str(tiny_bert))):
        with pytest.raises(ConfigError, match=r"vocabulary\.init omp and vocabulary\.donor must be set together"):
            change_vocabulary(Context.of(wrong))
