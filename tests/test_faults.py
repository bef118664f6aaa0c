"""Tests that jobs which are stopped, killed, out of resources or run twice give the result of an undisturbed job."""

import hashlib
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapt.train.checkpoints.stored_checkpoints import newest_whole, step_of
from tests import drive
from tests.drive import Job, Jobs, gone, record, reports, run_folder, saved_steps, stamps, whole_step
from tests.samples import sentences

STEPS = 60
EVERY = 5
"""Number of training steps between two checkpoints."""
STAGES = ["manifest", "prepare", "train", "evaluate", "evaluate", "export"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
jobs = pytest.fixture(drive.jobs)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> list[str]:
    """Returns the arguments of a small job on two workers."""
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(1500)))
    return [
        f"--model.path={tiny_bert}",
        f"--corpus.paths={corpus}",
        "--corpus.heldout_fraction=0.02",
        f"--training.max_steps={STEPS}",
        "--training.global_batch_size=16",
        "--training.micro_batch=4",
        "--training.precision=fp32",
        "--training.sequence_length=64",
        "--training.log_interval_steps=1",
        f"--training.checkpoint_interval_steps={EVERY}",
        "--evaluation.sequence_length=64",
        "--evaluation.bootstrap_samples=50",
        "--evaluation.examples=0",
        "--resources.workers=2",
        "--resources.zero_stage=2",
    ]


@pytest.fixture(scope="module")
def peaceful(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> Iterator[list[Job]]:
    """Returns two finished jobs that ran at the same time with the same arguments."""
    folder = tmp_path_factory.mktemp("peaceful")
    made = drive.Jobs()
    for _ in range(2):
        made.start(folder, arguments)
    for job in made.started:
        job.end()
    yield made.started
    made.close()


def with_text(root: Path, folder: Path) -> Path:
    """Creates the folder of a new job. Copies the prepared text of the job below `root` into this folder."""
    for stage in ("manifest", "prepare"):
        shutil.copytree(root / stage, folder / "runs" / stage)
    return folder


def weights(result: dict[str, Any]) -> bytes:
    return (Path(result["path"]) / "model.safetensors").read_bytes()


def check_failed(job: Job, code: int, *messages: str) -> None:
    """Checks that a job failed with one error and its fix as the end of stderr, and printed nothing on stdout."""
    assert job.end() == code, job.err
    assert job.out == ""
    assert "Traceback" not in job.err
    assert job.err.count("\n  fix: ") == 1
    last = "\n".join(job.err.splitlines()[-2:])
    for message in messages:
        assert message in last


def test_two_identical_jobs_at_once_do_the_work_once(peaceful: list[Job]) -> None:
    one, other = (job.result() for job in peaceful)
    assert one == other
    said = "".join(job.err for job in peaceful)
    assert sorted(line.split(":")[0] for line in said.splitlines() if ": done in" in line) == sorted(STAGES)
    assert "another run works on it" in said
    assert [line["step"] for line in reports(peaceful[0].root)] == list(range(1, STEPS + 1))
    assert saved_steps(peaceful[0].root) == [STEPS - EVERY, STEPS]


def test_a_job_that_is_killed_again_and_again(
    jobs: Jobs, peaceful: list[Job], arguments: list[str], tmp_path: Path
) -> None:
    """Interrupts a job, kills it, and finally kills one of its workers.

    Each time, the same command continues the job. `tests/ray/test_connection.py` tests that the processes of a killed
    job end by themselves if they are not forked, as in a user's job.
    """
    reached = 0  # training step of the newest complete checkpoint
    finished: dict[str, int] = {}
    for number in (signal.SIGINT, signal.SIGKILL):
        job = jobs.start(tmp_path, arguments)
        job.until(lambda job=job, reached=reached: whole_step(job.root) > reached and "\nstep " in job.err)
        everything = job.below()
        assert len(job.workers()) == 2
        job.interrupt(number)
        if number == signal.SIGKILL:
            assert job.end() == -number
        else:
            check_failed(job, 130, "Interrupted: the job was stopped before it finished", "run the same command again")
        assert gone(everything, within_s=120), number
        check_resumed(job, reached)
        reached = whole_step(job.root)
        finished = finished or {**stamps(job.root / "manifest"), **stamps(job.root / "prepare")}
    shutil.copytree(job.root, tmp_path / "other" / "runs")

    job = jobs.start(tmp_path, arguments)
    job.until(lambda: whole_step(job.root) > reached)
    job.workers()[-1].kill()
    result = job.result()
    check_resumed(job, reached)
    assert weights(result) == weights(peaceful[0].result())
    assert {**stamps(job.root / "manifest"), **stamps(job.root / "prepare")} == finished
    assert [line["step"] for line in reports(job.root)] == list(range(1, STEPS + 1))
    assert saved_steps(job.root) == [STEPS - EVERY, STEPS]
    assert local_leftovers(job.root) == []
    made = record(job.root, "train")
    assert (made["metrics"]["steps"], made["metrics"]["tokens"]) == (STEPS, result["metrics"]["tokens"])
    assert (made["resources"]["workers"], made["resources"]["zero_stage"]) == (2, 2)

    # A job with different resources continues from the state at the kill, and must get the same result.
    job = jobs.start(tmp_path / "other", [*arguments, "--resources.workers=1", "--resources.zero_stage=0"])
    moved = job.result()
    check_resumed(job, reached)
    assert moved["metrics"]["steps"] == STEPS
    assert moved["metrics"]["tokens"] == result["metrics"]["tokens"]
    ends = [found["metrics"]["losses"]["domain"]["after"]["value"] for found in (moved, result)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)
    made = record(job.root, "train")
    assert (made["resources"]["workers"], made["resources"]["zero_stage"]) == (1, 0)
    assert [line["step"] for line in reports(job.root)] == list(range(1, STEPS + 1))


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(
    jobs: Jobs, peaceful: list[Job], arguments: list[str], tmp_path: Path
) -> None:
    job = jobs.start(with_text(peaceful[0].root, tmp_path), arguments)
    job.until(lambda: whole_step(job.root) > EVERY)
    job.interrupt(signal.SIGKILL)
    job.end()
    newest = newest_whole(run_folder(job.root))
    assert newest is not None
    reached = step_of(newest)
    file = max(newest.glob("state/*"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0x40
    file.write_bytes(content)

    job = jobs.start(tmp_path, arguments)
    result = job.result()
    assert (
        f"the checkpoint {newest} has changed since this job wrote it (state/{file.name} has other content)" in job.err
    )
    assert f"training goes on from step {reached - EVERY}" in job.err
    assert job.first_step() == reached - EVERY + 1
    assert weights(result) == weights(peaceful[0].result())


def local_leftovers(root: Path) -> list[Path]:
    """Returns files of checkpoints that ranks had not yet uploaded to the store when they ended."""
    name = hashlib.sha256(str(run_folder(root)).encode()).hexdigest()[:12]
    return list(Path(tempfile.gettempdir()).glob(f"checkpoint-{name}-*"))


def check_resumed(job: Job, reached: int) -> None:
    """Checks that the job continued after the newest complete checkpoint, which was written at step `reached`.

    The first line may be about a later step than `reached + 1`, because fast steps share a line.
    """
    assert job.first_step() > reached
    assert job.err.count("prepare: done") == (0 if reached else 1)


def test_a_diverging_run_ends_at_once_and_keeps_its_checkpoints(
    jobs: Jobs, peaceful: list[Job], arguments: list[str], tmp_path: Path
) -> None:
    more = ["--training.learning_rate=1e38", "--training.checkpoint_interval_steps=1", "--training.warmup_fraction=0"]
    job = jobs.start(with_text(peaceful[0].root, tmp_path), [*arguments, *more])
    check_failed(job, 7, "TrainingError: step 2: loss ", "training.learning_rate")
    assert whole_step(job.root) == 1
    assert [line["step"] for line in reports(job.root)] == [1]
    # One log folder means that the ranks were started once.
    assert len(list(job.root.glob("train/*/tensorboard/*"))) == 1
    assert not list(job.root.glob("train/*/stage.json"))


def test_a_budget_ends_a_job_that_goes_on_with_a_larger_one(
    jobs: Jobs, peaceful: list[Job], arguments: list[str], tmp_path: Path
) -> None:
    """The budget is reached at once, so the training ends after its first steps."""
    job = jobs.start(with_text(peaceful[0].root, tmp_path), [*arguments, "--resources.budget={device_hours: 0.000001}"])
    check_failed(job, 9, "BudgetError: the budget is spent", "raise resources.budget and run the same command")
    reached = whole_step(job.root)
    assert 0 < reached < STEPS
    assert f"training stopped after step {reached} of {STEPS}, with a checkpoint" in job.err
    assert not list(job.root.glob("train/*/stage.json"))

    job = jobs.start(tmp_path, [*arguments, "--resources.budget={device_hours: 100}"])
    result = job.result()
    check_resumed(job, reached)
    assert weights(result) == weights(peaceful[0].result())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system with a capacity of 32 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fills the disk with a single file and returns its path."""
    path = disk / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    return path


def test_a_disk_that_fills_up(jobs: Jobs, peaceful: list[Job], arguments: list[str], small_disk: Path) -> None:
    """Checks that the job can be interrupted while the disk is full, and that it continues when there is room again."""
    job = jobs.start(with_text(peaceful[0].root, small_disk / "job"), arguments)
    job.until(lambda: whole_step(job.root) > 0)
    filler = fill(small_disk)
    check_failed(job, 6, "StorageError: no space left while writing ", str(job.root / "train"), "free some space")
    filler.unlink()
    reached = whole_step(job.root)
    assert reached > 0

    job = jobs.start(small_disk / "job", arguments)
    job.until(lambda: whole_step(job.root) > reached)
    everything = job.below()
    job.interrupt(signal.SIGTERM)
    check_failed(job, 130, "Interrupted: the job was stopped before it finished", "run the same command again")
    assert gone(everything, within_s=120)
    check_resumed(job, reached)


def test_an_unreachable_cluster(jobs: Jobs, arguments: list[str], tmp_path: Path) -> None:
    began = time.monotonic()
    job = jobs.start(tmp_path, [*arguments, "--resources.address=127.0.0.1:1"])
    check_failed(job, 5, "ClusterError: no Ray cluster answers at 127.0.0.1:1", "ray start --head", "RAY_ADDRESS")
    assert time.monotonic() - began < 1200  # The test takes 2 s on an idle machine.
