from pathlib import Path

import pytest

from adapt.corpus.gather import gather
from adapt.corpus.tokens import TokenStream, write_shard
from adapt.runner import Stage, Store, ensure
from adapt.runner.run import Outcome
from adapt.schema import HELDOUT_GLOB


@pytest.mark.parametrize("times", [1, 2])
def test_heldout_text_of_all_sources_in_their_order(tmp_path: Path, times: int) -> None:
    def source(name: str, documents: list[list[int]]) -> Stage:
        def run(folder: Path, _: object) -> Outcome:
            for number, document in enumerate(documents):
                write_shard(folder / f"heldout-{number:06d}-000000.arrow", [document], 100)
            return Outcome({"train_tokens": len(documents), "bad": {"x": 1}})

        return Stage("prepare", name, {"name": name}, run)

    records = [ensure(s, Store(tmp_path)) for s in (source("b", [[1], [2, 3]]), source("a", [[4]]))]
    (folder := tmp_path / "all").mkdir()
    for _ in range(times):
        assert gather(records, folder) == {"train_tokens": 3}
    stream = TokenStream.open(folder, HELDOUT_GLOB)
    assert [stream.document(number).tolist() for number in range(stream.documents)] == [[1], [2, 3], [4]]
