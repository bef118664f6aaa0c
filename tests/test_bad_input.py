"""Whatever is wrong with what a job is given: the right exit code, one message with its fix, no stack trace.

Where nothing has to be started to see it, nothing is. Ray, where it is needed, is the one that the tests share.
"""

import gzip
import json
import lzma
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import adapt.runtime
from adapt.console import run_job
from adapt.corpus.files import retry
from adapt.corpus.shards.prepare import numbered_items
from adapt.errors import ConfigError
from adapt.job.dapt import JOB
from adapt.job.run import carry_out
from adapt.train.precision import resolve
from tests.model.checkpoints import write_tokenizer
from tests.samples import sentences

TEXTS = sentences(200)


@pytest.fixture(autouse=True)
def _keep_handlers() -> Iterator[None]:
    """`run_job` listens to signals; afterwards pytest does again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


LATER = {"training__max_steps": "null", "training__epochs": 1, "training__warmup_steps": 100}
"""A mistake that cannot be seen before the corpus is prepared: so the job ends there."""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(
    tmp_path: Path,
    tiny_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Run:
    """Runs jobs/dapt.py in this process on `corpus.jsonl`, with everything else in order but what the arguments say."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "corpus.jsonl", *map(line, TEXTS))
    usual = {
        "model.path": tiny_bert,
        "corpus.paths": "corpus.jsonl",
        "corpus.heldout_fraction": 0.1,
        "training.max_steps": 3,
        "training.global_batch_size": 4,
        "training.sequence_length": 64,
        "evaluation.sequence_length": 64,
        "storage.root": tmp_path / "runs",
    }

    def run(**changes: object) -> Ran:
        given = {**usual, **{name.replace("__", "."): value for name, value in changes.items()}}
        monkeypatch.setattr(sys, "argv", ["jobs/dapt.py", *(f"--{name}={value}" for name, value in given.items())])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            run_job(lambda: carry_out(JOB, sys.argv[1:]))
        out, err = capfd.readouterr()
        return Ran(int(caught.value.code or 0), out, caplog.text + err)  # what Ray logs goes past capfd

    return run


@pytest.fixture
def run_early(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same for what must be seen before Ray is started or joined."""

    def connect(_: object) -> None:
        raise AssertionError("Ray is about to be started")

    monkeypatch.setattr(adapt.runtime, "connect", connect)
    return run


@pytest.fixture
def run_late(run: Run, ray_cluster: None) -> Run:
    """The same with Ray running."""
    return run


def check(ran: Ran, code: int, *messages: str) -> None:
    """One clear message with its fix at the end, and nothing on stdout."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n  fix: ") == ran.err.count("Error: ") == 1
    last = "\n".join(ran.err.splitlines()[-2:])
    for message in messages:
        assert message in last


def line(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


def write(path: Path, *lines: bytes) -> None:
    path.write_bytes(b"".join(lines))


def record(folder: Path, stage: str) -> dict[str, Any]:
    (file,) = folder.glob(f"runs/{stage}/*/stage.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


# --- before Ray


def test_a_file_that_is_not_there(run_early: Run) -> None:
    check(run_early(corpus__paths="gone/*.jsonl"), 3, "DataError: gone/*.jsonl matches no file", "check the path")
    check(run_early(evaluation__general_paths="gone.txt"), 3, "DataError: gone.txt matches no file")


def test_a_field_that_is_not_there(run_early: Run, tmp_path: Path) -> None:
    fields = "corpus.jsonl has no field 'body'; it has 'text'", "set corpus.text_field"
    check(run_early(corpus__text_field="body"), 3, *fields)
    write(tmp_path / "corpus.jsonl", b"broken\n", b'{"id": 1, "content": "a text", "url": ""}\n')
    check(run_early(), 3, "corpus.jsonl has no field 'text'; it has 'id', 'content', 'url'")


@pytest.mark.parametrize("name", ["corpus.csv", "corpus.tsv", "corpus.parquet", "corpus.arrow", "corpus.jsonl.xz"])
def test_a_column_that_is_not_there_in_any_format(run_early: Run, tmp_path: Path, name: str) -> None:
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


def test_files_that_do_not_agree(run_early: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "corpus.jsonl").rename(tmp_path / "data" / "a.jsonl")
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "data" / "b.parquet")
    check(run_early(corpus__paths="data"), 3, "DataError: field 'text' of ", "b.parquet is int64, not text")
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "data" / "b.parquet")
    check(run_early(corpus__paths="data"), 3, "b.parquet has no field 'text'; it has 'body'")


def test_a_store_that_needs_a_package(run_early: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapt.corpus.files.location.find_spec", lambda _: None)
    check(
        run_early(corpus__paths="s3://bucket/a.jsonl"), 2, "s3://bucket/a.jsonl needs the package s3fs", "dontstop[s3]"
    )


def test_a_server_that_is_not_there(run_early: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "WAITS_S", (0.01, 0.01))
    ran = run_early(corpus__paths="http://user:secret@127.0.0.1:9/a.jsonl?key=secret")
    check(ran, 6, "StorageError: cannot read http://127.0.0.1:9/a.jsonl: ", "3 times in a row")
    assert "secret" not in ran.err


def test_a_file_with_nothing_in_it(run_early: Run, tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl")
    check(run_early(), 3, "DataError: the corpus is empty: 1 files of 0 bytes, first ", "corpus.jsonl", "corpus.paths")


def test_a_gzip_file_that_is_none(run_early: Run, tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl.gz", b"no gzip")
    check(run_early(corpus__paths="corpus.jsonl.gz"), 3, "corpus.jsonl.gz is broken", "fetch or write the file again")


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
def test_what_no_machine_can_do(run_early: Run, field: str, value: object, message: str) -> None:
    check(run_early(**{field: value}), 2, "ConfigError: ", message)


def test_a_storage_root_that_is_a_file(run_early: Run, tmp_path: Path) -> None:
    for root in ("corpus.jsonl", "corpus.jsonl/below"):
        check(run_early(storage__root=root), 6, f"StorageError: cannot write {tmp_path / root}", "point storage.root")


def test_weights_that_are_cut_short(run_early: Run, model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    check(run_early(model__path=model), 4, f"ModelError: {file} cannot be read", "copy or download the model again")


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
def test_bf16_where_the_cpu_has_none(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    if precision == "bf16":
        with pytest.raises(ConfigError, match=r"training\.precision bf16: .* no bf16 arithmetic") as caught:
            resolve(precision, torch.device("cpu"))
        assert "fp32" in caught.value.fix
    else:
        assert resolve(precision, torch.device("cpu")) == "fp32"


def test_bf16_where_the_cpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert [resolve(wanted, torch.device("cpu")) for wanted in ("auto", "fp32", "bf16")] == ["bf16", "fp32", "bf16"]


# --- with Ray


@pytest.fixture
def model(tmp_path: Path, tiny_bert: Path) -> Path:
    """A copy of the model, to be damaged."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_corpus_smaller_than_a_batch(run_late: Run, tmp_path: Path) -> None:
    ran = run_late(training__global_batch_size=512, **LATER)
    check(ran, 2, "training.warmup_steps 100 is longer than the run of 1 steps")
    rows = -(-record(tmp_path, "prepare")["metrics"]["train_tokens"] // 64)
    assert f"the corpus is {rows} rows: a batch of 512 repeats them" in ran.err


def test_a_file_of_blank_lines(run_late: Run, tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", b"\n \n\n")
    check(
        run_late(), 3, "DataError: the corpus is empty after cleaning: no record at all", "corpus.jsonl", "corpus.paths"
    )


def test_a_gzip_file_that_ends_in_the_middle(run_late: Run, tmp_path: Path) -> None:
    """Further in than the first look goes."""
    whole = gzip.compress(b"".join(map(line, sentences(2000))) * 20)
    write(tmp_path / "corpus.jsonl.gz", whole[: len(whole) // 2])
    ran = run_late(corpus__paths="corpus.jsonl.gz")
    check(ran, 3, "DataError: ", f"{tmp_path}/corpus.jsonl.gz is broken", "fetch or write the file again")


def test_a_line_of_200_mb(run_late: Run, tmp_path: Path) -> None:
    """It is passed over, counted and placed; nothing else is lost."""
    with (tmp_path / "corpus.jsonl").open("ab") as file:
        file.truncate(file.tell() + 200_000_000)  # a hole: bytes, but none on the disk
        file.seek(0, 2)
        file.write(b"\n" + line(TEXTS[0] + " And more of it."))
    ran = run_late(corpus__max_record_mib=16, **LATER)
    check(ran, 2, "training.warmup_steps 100 is longer")
    assert f"skipped 1 of {len(TEXTS) + 2} records: 1 longer than corpus.max_record_mib (first: {tmp_path}" in ran.err
    metrics = record(tmp_path, "prepare")["metrics"]
    assert metrics["train_documents"] + metrics["heldout_documents"] == len(TEXTS) + 1


def test_a_file_that_changes_while_it_is_read(run_late: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*given: Any) -> list[dict[str, Any]]:
        items = numbered_items(*given)
        with (tmp_path / "corpus.jsonl").open("ab") as file:
            file.write(line("another text, written by somebody else"))
        return items

    monkeypatch.setattr("adapt.corpus.shards.prepare.numbered_items", listed)
    check(run_late(), 3, f"DataError: {tmp_path}/corpus.jsonl has changed since", "run the same command again")


def test_ids_that_come_twice_are_counted_and_kept(run_late: Run, tmp_path: Path) -> None:
    records = [json.dumps({"text": text, "key": number % 150}) + "\n" for number, text in enumerate(TEXTS)]
    (tmp_path / "corpus.jsonl").write_text("".join(records))
    (tmp_path / "empty.jsonl").touch()
    ran = run_late(
        corpus__paths="[corpus.jsonl,empty.jsonl]",
        corpus__id_field="key",
        **LATER,
    )
    check(ran, 2, "training.warmup_steps 100 is longer")
    assert "50 documents have an id that came before; they are kept" in ran.err
    assert "left out 1 files of 0 bytes" in ran.err
    metrics = record(tmp_path, "prepare")["metrics"]
    assert metrics["repeated_ids"] == 50
    assert metrics["train_documents"] + metrics["heldout_documents"] == len(TEXTS)
    assert record(tmp_path, "manifest")["metrics"]["empty_files"] == 1


BROKEN = [b'{"text": "cut of\n', b'{"text": "caf\xe9, in latin 1, as old files are"}\n', b'{"text": 5}\n']


def test_few_broken_records_are_skipped_and_counted(run_late: Run, tmp_path: Path) -> None:
    """The job goes on, up to the next mistake."""
    write(tmp_path / "corpus.jsonl", *map(line, TEXTS), *BROKEN)
    ran = run_late(corpus__max_bad_fraction=0.05, **LATER)
    check(ran, 2, "training.warmup_steps 100 is longer")
    assert f"skipped 3 of {len(TEXTS) + 3} records: 1 malformed JSON (first: " in ran.err
    assert record(tmp_path, "prepare")["metrics"]["bad"] == {
        "malformed JSON": 1,
        "invalid UTF-8": 1,
        "text is not a string": 1,
    }


def test_many_broken_records_end_the_job(run_late: Run, tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", *map(line, TEXTS), *BROKEN)
    place = f"{tmp_path}/corpus.jsonl, record"
    check(
        run_late(),
        3,
        f"DataError: 3 of {len(TEXTS) + 3} records are unreadable",
        f"1 malformed JSON (first: {place} {len(TEXTS) + 1})",
        f"1 invalid UTF-8 (first: {place} {len(TEXTS) + 2})",
        "corpus.max_bad_fraction (now 0.01)",
    )
    assert not list((tmp_path / "runs").glob("prepare/*/stage.json"))


def test_a_tokenizer_of_another_model(run_late: Run, tmp_path: Path, tiny_bert: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_tokenizer(other)
    check(run_late(model__tokenizer=other), 4, "ModelError: ", str(other), str(tiny_bert), "tokenizer")


def test_more_workers_than_the_machine_has_cpus(run_late: Run) -> None:
    ran = run_late(resources__workers=4)
    check(ran, 5, "ClusterError: there is room for 2 of 4 workers with 1 CPU each; the cluster has 2 CPU in all")
    assert "prepare: done" not in ran.err


def test_weights_that_are_not_finite(run_late: Run, model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.weight"][3, 3] = torch.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    check(run_late(model__path=model), 4, "ModelError: BertForMaskedLM gives a loss of nan", "weights are not finite")
    assert not list((tmp_path / "runs").glob("train/*/tensorboard"))


def test_a_model_without_its_head(run_late: Run, model: Path, tmp_path: Path) -> None:
    """The ranks find out, all alike; it stays an error of the model."""
    weights = {name: value for name, value in load_file(model / "model.safetensors").items() if "cls." not in name}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    check(run_late(model__path=model), 4, f"ModelError: {model} lacks weights of its language model", "cls.predictions")
    assert not list((tmp_path / "runs").glob("train/*/tensorboard"))
