"""Work in two steps side by side: the order of pieces, how far reading goes ahead, what waits, and errors."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapt.corpus import relay
from adapt.corpus.relay import relayed
from adapt.errors import DataError

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Piece(NamedTuple):
    argument: int
    number: int


class Count:
    """Yields as many pieces as its argument says, and notes each in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, argument: int) -> Iterator[Piece]:
        for number in range(argument):
            if argument == 13:
                raise DataError("13 of them", "give fewer")
            (self.folder / f"{argument}-{number}").touch()
            yield Piece(argument, number)


def doubled(piece: Piece) -> tuple[Piece, int, int]:
    if piece == (7, 3):
        raise DataError("the piece 3 of 7", "leave it out")
    return piece, 2 * piece.number, os.getpid()


def test_each_piece_is_worked_on_once_and_those_of_an_argument_in_order(tmp_path: Path) -> None:
    arguments = [5, 0, 3, 1, 30, 2]
    found = list(relayed(Count(tmp_path), doubled, arguments))
    assert sorted(piece for piece, *_ in found) == sorted((a, number) for a in arguments for number in range(a))
    for argument in arguments:
        assert [piece.number for piece, *_ in found if piece.argument == argument] == list(range(argument))
    assert all(result == 2 * piece.number for piece, result, _ in found)
    assert os.getpid() not in {process for *_, process in found}


def test_reading_waits_for_what_is_worked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    cores = int(ray.cluster_resources()["CPU"])
    monkeypatch.setattr(relay, "READ_AHEAD", 2)
    monkeypatch.setattr(relay, "GIVEN_OUT", 1)
    taken = 0
    for piece, *_ in relayed(Count(tmp_path), doubled, [100]):
        taken += 1
        assert len(list(tmp_path.iterdir())) <= taken + cores + 2 + 2, piece
    assert taken == 100


def test_work_begins_after_what_it_waits_for_and_reading_before(tmp_path: Path) -> None:
    import ray

    def wait() -> float:
        while not (tmp_path / "4-3").exists():
            time.sleep(0.01)
        return time.time()

    def worked(piece: Piece) -> float:
        return time.time()

    ready: Any = ray.remote(num_cpus=0)(wait).remote()
    times = list(relayed(Count(tmp_path), worked, [4], after=ready))
    assert min(times) >= ray.get(ready)


@pytest.mark.parametrize(("argument", "message"), [(13, "13 of them"), (7, "the piece 3 of 7")])
def test_an_error_of_either_step_comes_out_as_itself(tmp_path: Path, argument: int, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        list(relayed(Count(tmp_path), doubled, [2, argument, 3]))
    assert type(caught.value) is DataError


def test_a_further_reader_starts_when_all_that_was_read_is_worked_off(tmp_path: Path) -> None:
    """Readers of which each waits for the other would else never end."""

    def together(argument: int) -> Iterator[Piece]:
        yield Piece(argument, 0)
        (tmp_path / str(argument)).touch()
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        yield Piece(argument, 1)

    assert len(list(relayed(together, doubled, [1, 2]))) == 4
