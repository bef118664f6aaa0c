"""Every kind of objective is made, and draws the same on every device."""

from typing import get_args, get_type_hints

import pytest

from adapt.config import ObjectiveConfig
from adapt.corpus.shards.form import Form
from adapt.objective.base import Corrupted
from adapt.objective.build import make
from tests.objective.rows import packed, wrapped
from tests.samples import sentences
from tests.tokenizers import wordpiece

KINDS = get_args(get_type_hints(ObjectiveConfig)["kind"])


def corrupted(kind: str) -> Corrupted:
    tokenizer = wordpiece()
    texts = sentences(40, seed=9)
    batch = packed(tokenizer, texts, 64, [[(0, len(text.split()[0]))] for text in texts])
    return make(ObjectiveConfig(kind=kind), wrapped(tokenizer), 0).corrupt(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_objective_asks_for_is_what_is_prepared(kind: str) -> None:
    config = ObjectiveConfig(kind=kind)
    assert make(config, wrapped(wordpiece()), 0).columns() == Form.of(config).marks


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_targets_in_each_row(kind: str) -> None:
    made = corrupted(kind)
    assert made.positions.any(1).all()
    assert not (made.positions & ~made.real).any()
    assert len(made.targets) == int(made.positions.sum())
