from dataclasses import replace
from pathlib import Path

import pytest

from adapt.corpus.heldout import gather
from adapt.corpus.token_shards import TokenStream, write_shard
from adapt.runner import Done, Outcome, Record, Store, ensure
from adapt.support.schema import HELDOUT_GLOB
from tests.runner.toys import Toy, ToyResult, idle


@pytest.mark.parametrize("times", [1, 2])
def test_gather_joins_heldout_text_in_the_order_of_sources(tmp_path: Path, times: int) -> None:
    def source(name: str, documents: list[list[int]]) -> Record:
        def write(folder: Path, _: Done) -> Outcome[ToyResult]:
            for number, document in enumerate(documents):
                write_shard(folder / f"heldout-{number:06d}-000000.arrow", [document], 100)
            return Outcome(ToyResult(lines=len(documents), found=["x"]))

        return ensure(Toy(name, "prepare", write, {"name": name}), Store(tmp_path)).record

    records = [source("b", [[1], [2, 3]]), source("a", [[4]])]
    (folder := tmp_path / "all").mkdir()
    for _ in range(times):
        assert gather(records, folder) == {"lines": 3}
    stream = TokenStream.open(folder, HELDOUT_GLOB)
    assert [stream.document(number).tolist() for number in range(stream.documents)] == [[1], [2, 3], [4]]


def test_gather_adds_up_dropped_documents_by_reason(tmp_path: Path) -> None:
    record = ensure(Toy("a", "prepare", idle), Store(tmp_path)).record
    metrics = [{"dropped": {"empty": 1, "too short": 2}, "bad": None}, {"dropped": {"empty": 3}, "bad": {}}]
    gathered = gather([replace(record, metrics=of) for of in metrics], tmp_path)
    assert gathered == {"dropped": {"empty": 4, "too short": 2}}
