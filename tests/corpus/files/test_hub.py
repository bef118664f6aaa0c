"""Tests reading a corpus from local folders with the `datasets` library. No test uses the network."""

import json
from pathlib import Path
from types import SimpleNamespace

import datasets
import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import RepositoryNotFoundError

from adapt.config import CorpusConfig
from adapt.corpus.corpora import check_readable
from adapt.corpus.files import filesystem, hub
from adapt.corpus.files.manifest import build_manifest, items_of, read_slice, slices_of
from adapt.runner.digest import Digests
from adapt.support.errors import DataError, StorageError


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    """Writes a dataset of three shards with four records each, and returns a corpus configuration that names it."""
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


def test_the_content_of_a_folder_enters_the_digest(corpus: CorpusConfig, tmp_path: Path) -> None:
    before = build_manifest(corpus, Digests(tmp_path / "digests")).digest
    assert before == build_manifest(corpus, Digests(tmp_path / "digests")).digest
    (Path(str(corpus.dataset)) / "train-1.jsonl").write_text('{"text": "x", "id": 1}\n')
    assert before != build_manifest(corpus, Digests(tmp_path / "digests")).digest


def check(corpus: CorpusConfig, tmp_path: Path, **changes: str) -> None:
    changed = CorpusConfig(**{"source": "dataset", "dataset": corpus.dataset, **changes})  # type: ignore[arg-type]
    check_readable(build_manifest(changed, Digests(tmp_path / "digests")), changed)


def test_missing_fields_splits_and_configurations_are_named(corpus: CorpusConfig, tmp_path: Path) -> None:
    check(corpus, tmp_path)
    with pytest.raises(DataError, match="has no field 'body'; it has 'text', 'id'"):
        check(corpus, tmp_path, text_field="body")
    with pytest.raises(DataError, match=r"Bad split: test\. Available splits: \['train'\]"):
        check(corpus, tmp_path, dataset_split="test")
    with pytest.raises(DataError, match="'other' not found"):
        check(corpus, tmp_path, dataset_config="other")


def test_the_commit_of_a_repository_enters_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(DataError, match="the dataset no/such failed: 404") as caught:
        build_manifest(CorpusConfig(source="dataset", dataset="no/such"), digests)
    assert "HF_TOKEN" in caught.value.fix


def test_a_hub_that_does_not_answer_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(filesystem.time, "sleep", pauses.append)
    with pytest.raises(StorageError, match=r"cannot read the dataset o/n: .*offline"):
        build_manifest(CorpusConfig(source="dataset", dataset="o/n"), Digests(tmp_path / "digests"))
    assert pauses


def folder(tmp_path: Path, **files: str) -> CorpusConfig:
    where = tmp_path / "made"
    where.mkdir()
    for name, content in files.items():
        (where / name.replace("_", ".")).write_text(content)
    return CorpusConfig(source="dataset", dataset=str(where))


@pytest.mark.parametrize(
    ("files", "says", "fix"),
    [
        (
            {"made_py": "raise SystemExit"},
            r"scripts are no longer supported, but found made\.py",
            "refs/convert/parquet",
        ),
        ({}, "doesn't contain any data files", "corpus.paths"),
        ({"a_xyz": "x"}, "No .* data files found", "corpus.paths"),
        ({"train_parquet": "no table"}, "failed: .*Parquet", "corpus.paths"),
        ({"train_jsonl": "no JSON"}, "JSON parse error", "corpus.paths"),
        (
            {"train_jsonl": '{"text": "a"}\n', "README_md": "---\nconfigs: [\n---\n"},
            "failed: while parsing",
            "check",
        ),
        ({"train_jsonl": '{"text": "a"}\n', "test_csv": "text\na\n"}, "same data file format", "corpus.paths"),
    ],
)
def test_a_dataset_that_cannot_be_opened_is_a_data_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], says: str, fix: str
) -> None:
    monkeypatch.setattr(filesystem.time, "sleep", None)  # cannot be called, so a second attempt fails
    with pytest.raises(DataError, match=says) as caught:
        check(folder(tmp_path, **files), tmp_path)
    assert fix in caught.value.fix


@pytest.mark.parametrize("error", [RuntimeError, KeyError, OSError, NotImplementedError, RecursionError, TypeError])
def test_errors_of_the_library_while_reading_name_the_dataset(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("odd")

    monkeypatch.setattr("datasets.load_dataset", fail)
    monkeypatch.setattr(filesystem.time, "sleep", None)
    hub.load_split.cache_clear()
    with pytest.raises(DataError, match=r"the dataset .* failed: .*odd"):
        check(corpus, tmp_path)


def test_an_outage_of_the_hub_is_retried(corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    pauses: list[float] = []
    monkeypatch.setattr("datasets.load_dataset", fail)
    monkeypatch.setattr(filesystem.time, "sleep", pauses.append)
    hub.load_split.cache_clear()
    with pytest.raises(StorageError, match="Couldn't reach the Hub"):
        check(corpus, tmp_path)
    assert pauses


def test_folders_written_by_save_to_disk_are_refused_with_a_fix(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="saved using `save_to_disk`") as caught:
        check(CorpusConfig(source="dataset", dataset=str(tmp_path / "saved")), tmp_path)
    assert "name the files that hold the texts in corpus.paths" in caught.value.fix


@pytest.mark.parametrize(
    "dataset", ["/no/such/folder", "./data", "data/sets/mine", "{tmp}/a.jsonl", "hf://datasets/o/n"]
)
def test_paths_that_are_no_dataset_are_refused_without_the_hub(tmp_path: Path, dataset: str) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"reading the dataset .* failed: Repo id must") as caught:
        check(CorpusConfig(source="dataset", dataset=dataset.format(tmp=tmp_path)), tmp_path)
    assert "corpus.paths" in caught.value.fix


def test_a_folder_in_the_home_directory(corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    check(CorpusConfig(source="dataset", dataset="~/dataset"), tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_rows_lost_in_a_quoted_cell_are_refused(tmp_path: Path, suffix: str) -> None:
    mark = {"csv": ",", "tsv": "\t"}[suffix]
    quotes = {3: ('"', ""), 8: ("", '"')}
    texts = [f"document {n}".join(quotes.get(n, ("", ""))) for n in range(20)]
    rows = [f"{text}{mark}{n % 2}\n" for n, text in enumerate(texts)]
    made = folder(tmp_path, **{f"train_{suffix}": f"text{mark}label\n" + "".join(rows)})
    manifest = build_manifest(made, Digests(tmp_path / "digests"))
    with pytest.raises(DataError, match=rf"train\.{suffix}, line 5: a quote begins a cell"):
        [list(read_slice(slices_of(item)[0], made)) for item in items_of(manifest, made)]


def test_a_file_in_a_linked_folder_enters_the_digest(corpus: CorpusConfig, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train-9.jsonl").write_text('{"text": "x", "id": 1}\n')
    (Path(str(corpus.dataset)) / "link").symlink_to(tmp_path / "elsewhere")
    before = build_manifest(corpus, Digests(tmp_path / "digests")).digest
    (tmp_path / "elsewhere" / "train-9.jsonl").write_text('{"text": "y", "id": 1}\n')
    assert before != build_manifest(corpus, Digests(tmp_path / "digests")).digest
