"""Datasets of the `datasets` library, here from a folder: no network."""

import json
from pathlib import Path
from types import SimpleNamespace

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import RepositoryNotFoundError

from adapt.config import CorpusConfig
from adapt.corpus.files import retry
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.files.sources import items_of, read_slice, slices_of
from adapt.corpus.readable import check_readable
from adapt.errors import ConfigError, DataError, StorageError
from adapt.runner.digest import Digests


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    """Three shards."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    for shard in range(3):
        records = [{"text": f"{shard} {number}" if number else None, "id": number} for number in range(4)]
        (folder / f"train-{shard}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return CorpusConfig(source="dataset", dataset=str(folder))


def test_each_shard_is_an_item(corpus: CorpusConfig, tmp_path: Path) -> None:
    manifest = build_manifest(corpus, Digests(tmp_path / "digests"))
    items = items_of(manifest, corpus)
    assert len(items) == 3
    assert [list(read_slice(slices_of(item)[0], corpus)) for item in items] == [
        ["no text", f"{shard} 1", f"{shard} 2", f"{shard} 3"] for shard in range(3)
    ]


def test_the_content_of_a_folder_counts(corpus: CorpusConfig, tmp_path: Path) -> None:
    before = build_manifest(corpus, Digests(tmp_path / "digests")).digest
    assert before == build_manifest(corpus, Digests(tmp_path / "digests")).digest
    (Path(str(corpus.dataset)) / "train-1.jsonl").write_text('{"text": "x", "id": 1}\n')
    assert before != build_manifest(corpus, Digests(tmp_path / "digests")).digest


def check(corpus: CorpusConfig, tmp_path: Path, **changes: str) -> None:
    changed = CorpusConfig(**{"source": "dataset", "dataset": corpus.dataset, **changes})  # type: ignore[arg-type]
    check_readable(build_manifest(changed, Digests(tmp_path / "digests")), changed)


def test_what_is_not_there_is_named(corpus: CorpusConfig, tmp_path: Path) -> None:
    check(corpus, tmp_path)
    with pytest.raises(DataError, match="has no field 'body'; it has 'text', 'id'"):
        check(corpus, tmp_path, text_field="body")
    with pytest.raises(DataError, match="has no field 'key'") as caught:
        check(corpus, tmp_path, id_field="key")
    assert "corpus.id_field" in caught.value.fix
    with pytest.raises(ConfigError, match=r"Bad split: test\. Available splits: \['train'\]"):
        check(corpus, tmp_path, dataset_split="test")
    with pytest.raises(ConfigError, match="'other' not found"):
        check(corpus, tmp_path, dataset_config="other")


def test_a_repository_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def dataset_info(_: object, repository: str, revision: str | None) -> SimpleNamespace:
        asked.append((repository, revision))
        if repository == "no/such":
            request = httpx.Request("GET", "https://hub")
            raise RepositoryNotFoundError("404", response=httpx.Response(404, request=request))
        return SimpleNamespace(sha=f"commit of {revision}")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    digests = Digests(tmp_path / "digests")
    (part,) = build_manifest(CorpusConfig(source="dataset", dataset="o/n", dataset_revision="v1"), digests).parts
    assert (part.path, part.stamp) == ("o/n", "commit of v1")
    assert asked == [("o/n", "v1")]
    others = [{"dataset_revision": "v2"}, {"dataset_split": "test"}, {"dataset_config": "en"}]
    found = {
        build_manifest(CorpusConfig(source="dataset", dataset="o/n", **other), digests).digest  # type: ignore[arg-type]
        for other in others
    }
    assert len(found) == 3
    with pytest.raises(DataError, match="there is no dataset no/such") as caught:
        build_manifest(CorpusConfig(source="dataset", dataset="no/such"), digests)
    assert "HF_TOKEN" in caught.value.fix


def test_a_hub_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", pauses.append)
    with pytest.raises(StorageError, match=r"cannot read the dataset o/n: .*offline"):
        build_manifest(CorpusConfig(source="dataset", dataset="o/n"), Digests(tmp_path / "digests"))
    assert pauses
