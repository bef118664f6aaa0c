"""What some stages lead to."""

from adapt.runner.reach import everything
from tests.runner.test_parallel import Waiting


def toy(name: str, *reads: Waiting) -> Waiting:
    return Waiting(name, lambda done: None, reads)


def test_everything_that_stages_lead_to_comes_once_the_stages_first() -> None:
    text = toy("text")
    one, two = toy("one", text), toy("two", text)
    last = toy("last", one, two, text)
    assert [stage.name for stage in everything([last])] == ["last", "one", "two", "text"]
    assert [stage.name for stage in everything([two, one])] == ["two", "one", "text"]
    assert everything([]) == []
