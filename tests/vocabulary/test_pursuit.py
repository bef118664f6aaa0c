"""Rows from a donor: sums that are found again, tokens that both models have, and a model that is its own donor."""

from pathlib import Path

import numpy as np
import pytest
import torch

from adapt.config import Config
from adapt.errors import ConfigError
from adapt.job.vocabulary_job import change_vocabulary
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.vocabulary.pursuit import transplant_rows, transplanted
from adapt.vocabulary.rows import add_rows, embedding_table
from adapt.vocabulary.words import WordReader
from tests.stage.vocabulary.test_extend import asking, config  # noqa: F401  a fixture
from tests.tokenizers import byte_level, unigram, wordpiece


def test_sparse_sums_are_found_again() -> None:
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


def test_the_stage_and_its_key(config: Config, tiny_bert: Path) -> None:  # noqa: F811
    asked = asking(config, init="omp", donor=str(tiny_bert))
    context = Context.of(asked)
    stage = change_vocabulary(context)
    assert stage.key != change_vocabulary(Context.of(config)).key
    assert load_model(ensure(stage, context.store).path).config.vocab_size == len(load_tokenizer(tiny_bert)) + 3
    for wrong in (asking(config, init="omp"), asking(config, donor=str(tiny_bert))):
        with pytest.raises(ConfigError, match=r"vocabulary\.init omp and vocabulary\.donor go together"):
            change_vocabulary(Context.of(wrong))
