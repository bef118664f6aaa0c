"""What of a pool is proposed."""

from typing import Any

import pytest

from adapt.advise.evidence import Evidence, TextEvidence
from adapt.advise.selecting import ProposedSelection, propose
from adapt.config import Config, SelectConfig
from tests.advise.cases import TASK, task, text

LARGE = text(documents=10_000_000, tokens=1_000_000_000)


def proposed(pool: TextEvidence | None, tasks: Any = (TASK,), **select: Any) -> ProposedSelection | None:
    return propose(Config(select=SelectConfig(**select)), Evidence(list(tasks), candidates=pool))


def test_fifty_documents_for_each_example() -> None:
    assert proposed(LARGE) == ProposedSelection("classifier", 200_000, 20_000_000, "select.tokens=20000000", 10)
    both = proposed(LARGE, [TASK, task(examples=1000)])
    assert both
    assert both.documents == 250_000


def test_of_a_small_pool_so_much_that_ten_passes_are_half_of_one_over_all() -> None:
    found = proposed(text(documents=100_000, tokens=9_000_000))
    assert found
    assert (found.documents, found.tokens) == (5000, 450_000)
    assert found.tokens
    assert found.tokens * found.passes == 9_000_000 / 2
    assert proposed(text(documents=79_999)) is None  # less than a document an example


@pytest.mark.parametrize(("pool", "tasks"), [(None, [TASK]), (LARGE, [])])
def test_nothing_without_a_pool_or_a_task(pool: TextEvidence | None, tasks: list[Any]) -> None:
    assert proposed(pool, tasks) is None


def test_of_a_pool_of_unknown_size_the_number_of_documents_is_said() -> None:
    unknown = text(documents=None, bytes=None, tokens=None)
    assert proposed(unknown) == ProposedSelection("classifier", 200_000, None, "select.per_example=50", 10)


@pytest.mark.parametrize(
    ("select", "documents", "tokens"),
    [({"documents": 70}, 70, 7000), ({"per_example": 2}, 8000, 800_000), ({"tokens": 1050}, 11, 1050)],
)
def test_what_is_configured_is_taken(select: dict[str, int], documents: int, tokens: int) -> None:
    kind = [{"dsir": {"noise": 0}}, "classifier"]
    found = proposed(LARGE, kind=kind, **select)
    assert found == ProposedSelection("dsir -> classifier", documents, tokens, "", 10)
