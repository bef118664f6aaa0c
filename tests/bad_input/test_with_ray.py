"""Tests errors that are only found while text or a model is read, when Ray is already running."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapt.corpus.files.manifest import numbered_items
from tests.bad_input.given import LATER, TEXTS, Run, check, line, record, write
from tests.model.checkpoints import write_tokenizer
from tests.samples import sentences


def test_a_corpus_smaller_than_a_batch(run_late: Run, tmp_path: Path) -> None:
    ran = run_late(training__global_batch_size=512, **LATER)
    check(ran, 2, "training.warmup_steps 100 is longer than the run of 1 steps")
    rows = -(-record(tmp_path, "prepare")["metrics"]["train_tokens"] // 64)
    assert f"the corpus fills only {rows} sequences, so a batch of 512 repeats them" in ran.err


def test_a_file_of_blank_lines(run_late: Run, tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", b"\n \n\n")
    says = "DataError: the corpus is empty after cleaning: the files contain no record"
    check(run_late(), 3, says, "corpus.jsonl", "corpus.paths")


def test_a_truncated_gzip_file(run_late: Run, tmp_path: Path) -> None:
    """Checks a truncated gzip file whose beginning, which the job reads before it starts Ray, is intact."""
    whole = gzip.compress(b"".join(map(line, sentences(2000))) * 20)
    write(tmp_path / "corpus.jsonl.gz", whole[: len(whole) // 2])
    ran = run_late(corpus__paths="corpus.jsonl.gz")
    check(ran, 3, "DataError: ", f"{tmp_path}/corpus.jsonl.gz is broken", "fetch or write the file again")


def test_a_line_of_200_mb(run_late: Run, tmp_path: Path) -> None:
    """Checks that a huge line is skipped and counted, that its location is reported, and that no other text is lost."""
    with (tmp_path / "corpus.jsonl").open("ab") as file:
        file.truncate(file.tell() + 200_000_000)  # The file is sparse, so it takes no disk space.
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

    monkeypatch.setattr("adapt.corpus.prepare_corpus.numbered_items", listed)
    check(run_late(), 3, f"DataError: {tmp_path}/corpus.jsonl has changed since", "run the same command again")


def test_empty_files_are_left_out_and_counted(run_late: Run, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(map(line, TEXTS)))
    (tmp_path / "empty.jsonl").touch()
    ran = run_late(corpus__paths="[corpus.jsonl,empty.jsonl]", **LATER)
    check(ran, 2, "training.warmup_steps 100 is longer")
    assert "left out 1 files of 0 bytes" in ran.err
    metrics = record(tmp_path, "prepare")["metrics"]
    assert metrics["train_documents"] + metrics["heldout_documents"] == len(TEXTS)
    assert record(tmp_path, "manifest")["metrics"]["empty_files"] == 1


BROKEN = [b'{"text": "cut of\n', b'{"text": "caf\xe9, in latin 1, as old files are"}\n', b'{"text": 5}\n']


def test_few_broken_records_are_skipped_and_counted(run_late: Run, tmp_path: Path) -> None:
    """Checks that the job skips and counts the broken records, and continues until the next error."""
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
    check(ran, 5, "ClusterError: the cluster has room for 2 of 4 workers with 1 CPU each; it has 2 CPU in total")
    assert "prepare: done" not in ran.err


def test_weights_that_are_not_finite(run_late: Run, model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.weight"][3, 3] = torch.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    check(
        run_late(model__path=model),
        4,
        f"ModelError: {model}",
        "layer.0.output.dense.weight has values that are not finite",
    )
    assert not list((tmp_path / "runs").glob("train/*/tensorboard"))


def test_a_model_without_its_head(run_late: Run, model: Path, tmp_path: Path) -> None:
    """Every rank fails to load a model without a head. The job must report the error once, as an error of the model."""
    weights = {name: value for name, value in load_file(model / "model.safetensors").items() if "cls." not in name}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    check(run_late(model__path=model), 4, f"ModelError: {model} lacks weights of its language model", "cls.predictions")
    assert not list((tmp_path / "runs").glob("train/*/tensorboard"))
