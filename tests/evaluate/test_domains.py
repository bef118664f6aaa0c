"""The comparison of domains as a stage: what it reads and leaves."""

import json
from pathlib import Path

import pytest

from adapt.corpus.shards.tokens import write_shard
from adapt.evaluate.domains import FILE, PICTURE, compare_domains
from adapt.evaluate.measure import LOSSES_FILE
from adapt.evaluate.results import Similar
from adapt.model.locate import Pretrained


@pytest.fixture
def corpora(tmp_path: Path) -> dict[str, Path]:
    """Two domains of the tiny tokenizer's words."""
    found = {}
    for place, name in enumerate(("cells", "code")):
        folder = tmp_path / name
        folder.mkdir()
        write_shard(folder / "train-000000-000000.arrow", [[6 + place, 7, 8], [6 + place, 7]] * 3, 1000, {})
        found[name] = folder
    return found


def test_by_words(tiny_bert: Path, corpora: dict[str, Path], tmp_path: Path):
    found = compare_domains(corpora, [], Pretrained(tiny_bert, tiny_bert, False), 100, tmp_path)
    assert Similar(**json.loads((tmp_path / FILE).read_text())) == found
    assert found.domains == ["cells", "code"]
    assert found.documents == [6, 6]
    assert found.model_loss is None
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_by_the_losses_of_models(tiny_bert: Path, corpora: dict[str, Path], tmp_path: Path):
    evaluations = []
    for place in range(2):
        folder = tmp_path / f"evaluation-{place}"
        folder.mkdir()
        losses = {name: {"losses": [1.0 + place, 3.0], "counts": [1, 3]} for name in corpora}
        (folder / LOSSES_FILE).write_text(json.dumps(losses))
        evaluations.append(folder)
    found = compare_domains(corpora, evaluations, Pretrained(tiny_bert, tiny_bert, False), 100, tmp_path)
    assert found.model_loss == [[1.0, 1.0], [1.25, 1.25]]
