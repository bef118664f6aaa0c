"""Entities and words share the predictions as configured, each whole."""

import pytest
import torch

from adapt.config import ObjectiveConfig
from adapt.corpus.entities import Span
from adapt.objective.base import Batch, Corrupted
from adapt.objective.build import make
from adapt.schema import ENTITIES, UNIT_STARTS
from tests.objective.rows import packed, units_by_hand, wrapped
from tests.tokenizers import FAMILIES, SPECIAL

TEXT = "the gradient of state vector xyzxyz is in a matrix with attention layer and small data words"
ENTITY_WORDS = ["state vector xyzxyz", "attention layer"]
SPANS = [(TEXT.index(words), TEXT.index(words) + len(words)) for words in ENTITY_WORDS]


def corrupted_rows(fraction: float, entities: list[Span]) -> tuple[Batch, torch.Tensor, Corrupted]:
    tokenizer = FAMILIES["unigram"]()
    batch = packed(tokenizer, [TEXT], 64, [entities], copies=6000)
    config = ObjectiveConfig(kind="entity", entity_fraction=fraction, mask_fraction=0.4, entity_field="e")
    special = torch.tensor([tokenizer.token_to_id(name) for name in SPECIAL])
    ordinary = ~torch.isin(batch.tokens, special) & batch.real
    return batch, ordinary, make(config, wrapped(tokenizer), 3).corrupt(batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_entities_and_words_are_predicted_whole(family: str) -> None:
    tokenizer = FAMILIES[family]()
    batch = packed(tokenizer, [TEXT] * 30, 25, [SPANS] * 30)
    config = ObjectiveConfig(kind="entity", mask_fraction=0.4, entity_field="e")
    corrupted = make(config, wrapped(tokenizer), 0).corrupt(batch)
    special = torch.tensor([tokenizer.token_to_id(name) for name in SPECIAL])
    ordinary = ~torch.isin(batch.tokens, special) & batch.real
    assert not (corrupted.positions & ~ordinary).any()
    assert (corrupted.positions & batch.marks[ENTITIES]).any()
    for row in range(len(batch.rows)):
        assert corrupted.positions[row].any()
        for unit in units_by_hand(batch.marks[UNIT_STARTS][row] | batch.starts[row], int(batch.lengths[row])):
            assert len({bool(corrupted.positions[row, place]) for place in unit if ordinary[row, place]}) <= 1


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.5, 1.0])
def test_shares_are_met_on_average(fraction: float) -> None:
    batch, ordinary, corrupted = corrupted_rows(fraction, SPANS)
    inside = batch.marks[ENTITIES]
    wanted = 0.4 * int(ordinary[0].sum())
    from_entities = min(fraction * wanted, int((inside & ordinary)[0].sum()))
    means = [float((corrupted.positions & part).sum(1).double().mean()) for part in (inside, ~inside)]
    assert means == pytest.approx([from_entities, wanted - from_entities], abs=0.12)


def test_without_entities_words_fill_up() -> None:
    _, ordinary, corrupted = corrupted_rows(0.5, [])
    assert float(corrupted.positions.sum(1).double().mean()) == pytest.approx(0.4 * int(ordinary[0].sum()), abs=0.1)


def test_without_words_entities_fill_up() -> None:
    words = [(TEXT.index(f" {word} ") + 1, TEXT.index(f" {word} ") + 1 + len(word)) for word in TEXT.split()[1:-1]]
    batch, ordinary, corrupted = corrupted_rows(0.5, [(0, 3), *words, (len(TEXT) - 5, len(TEXT))])
    assert torch.equal(batch.marks[ENTITIES] & batch.real, ordinary)
    assert float(corrupted.positions.sum(1).double().mean()) == pytest.approx(0.4 * int(ordinary[0].sum()), abs=0.1)
