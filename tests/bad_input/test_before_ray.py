"""Tests errors that a job reports before it starts or joins Ray."""

import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from adapt.corpus.files import filesystem
from adapt.support.errors import ConfigError
from adapt.train.model_options import resolve
from tests.bad_input.given import Run, check, write


def test_a_missing_file(run_early: Run) -> None:
    check(run_early(corpus__paths="gone/*.jsonl"), 3, "DataError: gone/*.jsonl matches no file", "check the path")
    check(run_early(evaluation__general_paths="gone.txt"), 3, "DataError: gone.txt matches no file")


def test_a_missing_field(run_early: Run, tmp_path: Path) -> None:
    fields = "corpus.jsonl has no field 'body'; it has 'text'", "set corpus.text_field"
    check(run_early(corpus__text_field="body"), 3, *fields)
    write(tmp_path / "corpus.jsonl", b"broken\n", b'{"id": 1, "content": "a text", "url": ""}\n')
    check(run_early(), 3, "corpus.jsonl has no field 'text'; it has 'id', 'content', 'url'")


@pytest.mark.parametrize("name", ["corpus.csv", "corpus.tsv", "corpus.parquet", "corpus.arrow", "corpus.jsonl.xz"])
def test_a_missing_column_in_any_format(run_early: Run, tmp_path: Path, name: str) -> None:
    table = pa.table({"id": ["1"], "content": ["a text"]})
    if name.endswith("parquet"):
        pq.write_table(table, tmp_path / name)
    elif name.endswith("arrow"):
        with pa.ipc.new_file(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
    elif name.endswith("xz"):
        (tmp_path / name).write_bytes(lzma.compress(b'{"id": "1", "content": "a text"}\n'))
    else:
        (tmp_path / name).write_text("id,content\n1,a text\n".replace(",", "," if name.endswith("csv") else "\t"))
    ran = run_early(corpus__paths=name)
    check(ran, 3, f"{name} has no field 'text'; it has 'id', 'content'", "set corpus.text_field")


def test_files_with_different_fields(run_early: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "corpus.jsonl").rename(tmp_path / "data" / "a.jsonl")
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "data" / "b.parquet")
    check(run_early(corpus__paths="data"), 3, "DataError: field 'text' of ", "b.parquet is int64, not text")
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "data" / "b.parquet")
    check(run_early(corpus__paths="data"), 3, "b.parquet has no field 'text'; it has 'body'")


def test_a_store_that_needs_a_missing_package(run_early: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapt.corpus.files.filesystem.find_spec", lambda _: None)
    check(
        run_early(corpus__paths="s3://bucket/a.jsonl"), 2, "s3://bucket/a.jsonl needs the package s3fs", "dontstop[s3]"
    )


def test_a_missing_server(run_early: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "WAITS_S", (0.01, 0.01))
    ran = run_early(corpus__paths="http://user:secret@127.0.0.1:9/a.jsonl?key=secret")
    check(ran, 6, "StorageError: cannot read http://127.0.0.1:9/a.jsonl: ", "3 times in a row")
    assert "secret" not in ran.err


def test_an_empty_file(run_early: Run, tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl")
    check(run_early(), 3, "DataError: the corpus is empty: 1 files of 0 bytes, first ", "corpus.jsonl", "corpus.paths")


def test_a_gzip_file_with_other_content(run_early: Run, tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl.gz", b"no gzip")
    says = "corpus.jsonl.gz is not compressed with gzip, though its name ends in .gz"
    check(run_early(corpus__paths="corpus.jsonl.gz"), 3, says, "remove .gz from its name")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("resources__zero_stage", 7, "resources.zero_stage"),
        ("training__precision", "fp8", "training.precision"),
        ("training__sequence_length", 129, "training.sequence_length is 129, but the model takes 128 tokens"),
        ("evaluation__sequence_length", 200, "evaluation.sequence_length is 200, but the model takes 128 tokens"),
        ("resources__workers", 3, "training.global_batch_size 4 is no multiple of resources.workers 3"),
        ("resources__workers", 0, "resources.workers"),
    ],
)
def test_settings_that_no_machine_supports(run_early: Run, field: str, value: object, message: str) -> None:
    check(run_early(**{field: value}), 2, "ConfigError: ", message)


@pytest.mark.parametrize(
    ("kind", "fields", "code", "message"),
    [
        ("expand", {}, 4, "ModelError: method.kind expand cannot add layers to bert models"),
        ("freeze", {"freeze__layers": 99}, 2, "ConfigError: freeze.layers is 99, but the model has 2 layers"),
        ("replay", {}, 2, "ConfigError: method.kind is replay, but there is neither an earlier domain"),
        ("replay", {"replay__fraction": 0}, 2, "replay.fraction is 0"),
        ("lora", {"lora__rank": 0}, 2, "lora.rank is 0"),
        ("interpolate", {"interpolate__share": 1.5}, 2, "interpolate.share is 1.5"),
        ("das", {"das__importance": "fisher", "das__embeddings": "gradient"}, 2, "das.embeddings is gradient"),
    ],
)
def test_a_method_that_cannot_work_with_the_model(
    run_early: Run, kind: str, fields: dict[str, object], code: int, message: str
) -> None:
    check(run_early(method__kind=kind, **fields), code, message)


def test_a_storage_root_that_is_a_file(run_early: Run, tmp_path: Path) -> None:
    for root in ("corpus.jsonl", "corpus.jsonl/below"):
        check(run_early(storage__root=root), 6, f"StorageError: cannot write {tmp_path / root}", "point storage.root")


def test_weights_that_are_cut_short(run_early: Run, model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    check(run_early(model__path=model), 4, f"ModelError: {file} cannot be read", "copy or download the model again")


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
def test_bf16_on_a_cpu_without_it(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    if precision == "bf16":
        with pytest.raises(ConfigError, match=r"training\.precision bf16: .* no bf16 arithmetic") as caught:
            resolve(precision, torch.device("cpu"))
        assert "fp32" in caught.value.fix
    else:
        assert resolve(precision, torch.device("cpu")) == "fp32"


def test_bf16_on_a_cpu_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert [resolve(wanted, torch.device("cpu")) for wanted in ("auto", "fp32", "bf16")] == ["bf16", "fp32", "bf16"]
