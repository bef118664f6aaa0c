"""The commands as a user types them, as far as they go without Ray: plans, refusals, re-runs with nothing to do."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapt.job.dapt import dapt
from adapt.parse import parse
from adapt.runner import ensure
from adapt.runner.record import load_record
from adapt.stage.context import Context
from adapt.stage.export import Exported
from tests.runner.made import made_up, pretend

ROOT = Path(__file__).parents[1]
HEAVY = {"ray", "torch", "transformers", "deepspeed", "pyarrow", "numpy", "datasets", "tokenizers", "huggingface_hub"}

# Runs a script as the main program, then notes which packages it has loaded.
PROGRAM = """
import runpy, sys
from pathlib import Path
_, loaded, script, *arguments = sys.argv
sys.argv = [script, *arguments]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    Path(loaded).write_text("\\n".join({name.split(".")[0] for name in sys.modules}))
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    loaded: set[str]


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a job in a process of its own, in the folder `tmp_path`."""

    def run(script: str, *arguments: str) -> Ran:
        loaded = tmp_path / "loaded.txt"
        command = [sys.executable, "-c", PROGRAM, str(loaded), str(ROOT / "jobs" / script), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
        return Ran(done.returncode, done.stdout, done.stderr, set(loaded.read_text().split()))

    return run


@pytest.fixture
def job(tmp_path: Path, tiny_bert: Path) -> list[str]:
    """Arguments of a small job that is in order."""
    lines = [json.dumps({"text": f"the model of sentence {number}"}) + "\n" for number in range(20)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    return [
        f"--model.path={tiny_bert}",
        "--corpus.paths=corpus.jsonl",
        "--training.global_batch_size=8",
        "--training.sequence_length=128",
        "--evaluation.sequence_length=128",
        f"--storage.root={tmp_path / 'runs'}",
    ]


def last_line(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.out.splitlines()[-1])
    return found


STAGES = ["manifest", "prepare", "train", "evaluate", "evaluate", "export"]
METRICS: dict[str, Any] = {
    "heldout_loss_before": 3.0,
    "heldout_loss_after": 2.0,
    "heldout_loss_change": -1.0,
    "steps": 10,
    "tokens": 10_240,
    "tokens_per_s": 1024.0,
    "data_wait_share": 0.01,
    "device_seconds": 10.0,
    "train_documents": 20,
    "train_tokens": 4096,
}
"""Of all stages together."""


def finish(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records for all stages of a job, as if it had run. Returns the export's folder."""
    monkeypatch.chdir(folder)
    context = Context.of(parse(arguments, ""))
    return ensure(pretend(dapt(context), **METRICS), context.store).path


# --- plan


def test_a_plan_shows_the_stages_and_loads_nothing_heavy(run: Run, job: list[str], tmp_path: Path) -> None:
    ran = run("chain.py", "plan", *job, "--resources.price_per_device_hour=2")
    assert ran.code == 0, ran.err
    stages, ahead = ran.err.split("the training ahead")
    rows = [row.split("│")[1:3] for row in stages.splitlines() if row.startswith("│") and row.split("│")[1].strip()]
    assert [(stage.strip(), state.strip()) for stage, state in rows] == [(stage, "run") for stage in STAGES]
    figures = [row.split("│")[1].strip() for row in ahead.splitlines() if row.startswith("│")]
    assert [name for name in figures if name] == [
        *("parameters", "memory a device", "micro-batch", "work", "device time", "cost"),
    ]
    assert ran.out.count("\n") == 1
    assert last_line(ran) == {
        "stage": "plan",
        "path": str(tmp_path / "runs"),
        "metrics": {"done": 0, "stages": len(STAGES)},
    }
    assert ran.loaded & HEAVY == set()


@pytest.mark.parametrize(
    ("name", "trainings", "stages"),
    [
        ("sequence", ["sequence: sequence-one", "sequence: sequence-two", "all"], {"importance": 3, "train": 2}),
        ("similarity", [], {"train": 0}),
    ],
)
def test_the_plan_of_another_job(
    run: Run, job: list[str], tmp_path: Path, name: str, trainings: list[str], stages: dict[str, int]
) -> None:
    (tmp_path / "other.jsonl").write_text(json.dumps({"text": "another text of some words"}) + "\n")
    sources = "[{name: one, paths: corpus.jsonl}, {name: two, paths: other.jsonl}]"
    settings = [each for each in job if "corpus" not in each]
    ran = run("chain.py", "plan", f"--job={name}", f"--corpus.sources={sources}", *settings)
    assert ran.code == 0, ran.err
    assert f"as jobs/{name}.py would run it" in ran.err
    planned, _, ahead = ran.err.partition("the trainings ahead")
    rows = [row.split("│")[1].strip() for row in planned.splitlines() if row.startswith("│")]
    assert {stage: rows.count(stage) for stage in stages} == stages
    assert [row.split("│")[1].strip() for row in ahead.splitlines() if row.startswith("│")] == trainings
    assert ran.loaded & (HEAVY - {"numpy"}) == set()


def test_the_chain_shows_its_usage(run: Run) -> None:
    ran = run("chain.py", "--help")
    assert ran.code == 0
    assert "jobs/chain.py plan FILE" in ran.out


def test_a_plan_after_a_run_says_what_changed(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(job, tmp_path, monkeypatch)
    assert last_line(run("chain.py", "plan", *job))["metrics"] == {"done": 6, "stages": 6}
    ran = run("chain.py", "plan", *job)
    assert "the training ahead" not in ran.err  # it is done
    ran = run("chain.py", "plan", *job, "--training.learning_rate=1e-4")
    assert last_line(ran)["metrics"] == {"done": 3, "stages": 6}
    assert ran.err.count("training.learning_rate: 0.0005 -> 0.0001") == 1
    assert ran.err.count("input training: ") == 1  # of the export
    assert ran.err.count("input start.training: ") == 1  # of the evaluation after


@pytest.mark.parametrize("arguments", [[], ["pln"], ["--config", "x.yaml"]])
def test_a_command_that_does_not_exist(run: Run, arguments: list[str]) -> None:
    check_refused(run("chain.py", *arguments), 2, "cannot read the command", "run|plan|status|report")


# --- nothing to do


def test_a_run_with_nothing_to_do_reports_and_starts_nothing(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = finish(job, tmp_path, monkeypatch)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("stage.json")}
    ran = run("dapt.py", *job)
    assert ran.code == 0, ran.err
    measured = {name: value for name, value in METRICS.items() if name in vars(made_up(Exported))}
    record = load_record(export)
    assert record is not None
    assert last_line(ran) == {"stage": "dapt", "path": str(export), "metrics": record.metrics}
    assert record.metrics == vars(made_up(Exported, **measured))
    assert len(measured) == 8
    assert ran.out.count("\n") == 1
    assert str(export) in ran.err
    assert ran.loaded & HEAVY == set()
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("stage.json")} == before


def test_the_digests_are_kept_for_the_next_start(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(job, tmp_path, monkeypatch)
    assert run("dapt.py", *job).code == 0
    digests = json.loads((tmp_path / "runs" / ".digests.json").read_text())
    assert str(tmp_path / "corpus.jsonl") in digests


def test_a_changed_corpus_is_not_nothing_to_do(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(job, tmp_path, monkeypatch)
    (tmp_path / "corpus.jsonl").write_text("")
    assert last_line(run("chain.py", "plan", *job))["metrics"] == {"done": 0, "stages": 6}


# --- refusals


def check_refused(ran: Ran, code: int, *messages: str) -> None:
    """One clear message with its fix on stderr, and nothing else."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    for message in messages:
        assert message in ran.err
    assert "Traceback" not in ran.err
    assert ran.err.count("\n  fix: ") == 1
    assert len(ran.err.splitlines()) == 2
    assert ran.loaded & {"ray", "torch"} == set()


REFUSED = [
    (["--corpus.paths=[]"], 2, ["ConfigError: corpus.paths is empty", "--corpus.paths"]),
    (["--training.learning_rat=1"], 2, ["unknown key --training.learning_rat", "did you mean training.learning_rate?"]),
    (["--training.learning_rate=-1"], 2, ["training.learning_rate is -1.0, but must be >0"]),
    (["--config=gone.yaml"], 2, ["gone.yaml: No such file or directory"]),
    (["--training.sequence_length=129"], 2, ["training.sequence_length is 129, but the model takes 128 tokens"]),
    (["--tracking.mlflow_uri=http://me:pass@host"], 2, ["ConfigError: tracking.mlflow_uri holds a password"]),
    (["--resources.workers=3"], 2, ["training.global_batch_size 8 is no multiple of resources.workers 3"]),
    (["--corpus.paths=gone.jsonl"], 3, ["DataError: ", "gone.jsonl matches no file"]),
    (["--corpus.paths=."], 3, ["holds no corpus file"]),
    (["--corpus.paths=notes.md"], 3, ["notes.md has no known format"]),
    (["--model.path=./gone"], 4, ["ModelError: there is no model folder ./gone"]),
    (["--model.path=."], 4, ["has no config.json"]),
    (["--model.tokenizer=."], 4, ["holds no tokenizer"]),
    (["--storage.root=notes.md"], 6, ["StorageError: cannot write ", "notes.md", "storage.root"]),
]


@pytest.mark.parametrize(("arguments", "code", "messages"), REFUSED, ids=[case[0][0] for case in REFUSED])
def test_what_cannot_work_is_refused_at_once(
    run: Run, job: list[str], tmp_path: Path, arguments: list[str], code: int, messages: list[str]
) -> None:
    (tmp_path / "notes.md").write_text("")
    if arguments == ["--corpus.paths=."]:
        (tmp_path / "corpus.jsonl").unlink()
    check_refused(run("dapt.py", *job, *arguments), code, *messages)


@pytest.fixture
def task(tmp_path: Path, tiny_bert: Path) -> list[str]:
    """Arguments of a labelled task that is in order."""
    for split in ("train", "dev", "test"):
        lines = [json.dumps({"text": f"the {split} {n}", "label": "ab"[n % 2]}) + "\n" for n in range(6)]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    splits = [f"--task.{split}={split}.jsonl" for split in ("train", "dev", "test")]
    lengths = ["--training.sequence_length=128", "--evaluation.sequence_length=128"]
    return [f"--model.path={tiny_bert}", *splits, *lengths, f"--storage.root={tmp_path / 'runs'}"]


TASK_REFUSED = [
    (["--task.dev=[]"], 2, ["ConfigError: task: dev is empty", "--task.dev"]),
    (["--task.test=gone.jsonl"], 3, ["DataError: ", "gone.jsonl matches no file"]),
    (["--task.text_field=body"], 3, ["has no field 'body'", "task.text_field"]),
    (["--task.label_field=lable"], 3, ["has no field 'lable'", "did you mean 'label'?"]),
    (["--finetune.seeds=[]"], 2, ["finetune.seeds is []"]),
    (["--finetune.mode=loRA"], 2, ["finetune.mode takes"]),
    (["--finetune.lerning_rate=1"], 2, ["did you mean finetune.learning_rate?"]),
    (["--tapt.random_per_example=0"], 2, ["tapt.random_per_example is 0, but must be >0"]),
]


@pytest.mark.parametrize("script", ["tapt.py", "finetune.py"])
@pytest.mark.parametrize(("arguments", "code", "messages"), TASK_REFUSED, ids=[case[0][0] for case in TASK_REFUSED])
def test_what_cannot_work_with_a_task_is_refused_at_once(
    run: Run, task: list[str], script: str, arguments: list[str], code: int, messages: list[str]
) -> None:
    if script == "tapt.py" and arguments[0].startswith("--task.label"):
        pytest.skip("TAPT does not look at labels before it runs")
    ran = run(script, *task, *arguments)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert all(message in ran.err for message in messages), ran.err
    assert "Traceback" not in ran.err
    assert ran.err.count("\n  fix: ") == 1
    assert "ray" not in ran.loaded


CHAIN_REFUSED = [
    (["fly", "a.yaml"], 2, ["cannot read the command fly a.yaml", "run|plan|status|report"]),
    (["run", "gone.yaml"], 2, ["gone.yaml: No such file or directory"]),
    (["run", "chain.yaml", "--date=x"], 2, ["unknown key --date", "did you mean data?"]),
    (["run", "chain.yaml", "--only=task=b"], 2, ["unknown key --only task=b"]),
    (["run", "chain.yaml", "--training.max_stps=3"], 2, ["did you mean training.max_steps?"]),
    (["run", "chain.yaml"], 3, ["DataError: ", "gone.jsonl matches no file"]),
]


@pytest.mark.parametrize(("arguments", "code", "messages"), CHAIN_REFUSED, ids=[" ".join(c[0]) for c in CHAIN_REFUSED])
def test_what_cannot_work_with_a_chain_is_refused_at_once(
    run: Run, tiny_bert: Path, tmp_path: Path, arguments: list[str], code: int, messages: list[str]
) -> None:
    lengths = "training.sequence_length: 128, evaluation.sequence_length: 128"
    (tmp_path / "chain.yaml").write_text(
        f"let: {{data: gone}}\ncommon: {{model.path: '{tiny_bert}', {lengths}}}\nsets: {{task: [a]}}\n"
        "stages: {dapt: {job: dapt, for: task, corpus.paths: '{data}.jsonl'}}\n"
    )
    ran = run("chain.py", *arguments)
    check_refused(ran, code, *messages)


def test_a_relative_storage_root_on_a_cluster_is_refused_before_connecting(
    run: Run, job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    check_refused(run("dapt.py", *job, "--storage.root=runs"), 2, "ConfigError: storage.root is relative", "all nodes")


def test_a_job_without_arguments_asks_for_the_corpus(run: Run) -> None:
    check_refused(run("dapt.py"), 2, "corpus.paths is empty")


def test_an_unreadable_record_is_named(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = finish(job, tmp_path, monkeypatch)
    (export / "stage.json").write_text("{")
    for script, arguments in (("dapt.py", job), ("chain.py", ["plan", *job])):
        check_refused(run(script, *arguments), 8, f"{export}/stage.json cannot be read", f"delete the folder {export}")


BROKEN: list[tuple[str, bytes, str]] = [
    ("corpus.jsonl", b'{"body": "a text", "id": 1}\n', "has no field 'text'; it has 'body', 'id'"),
    ("corpus.jsonl.gz", gzip.compress(b'{"text": "a text"}\n' * 100)[:40], "corpus.jsonl.gz is broken"),
    ("corpus.jsonl.zst", b"no zstd", "corpus.jsonl.zst is broken"),
    ("corpus.parquet", b"no parquet", "corpus.parquet is broken"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_a_corpus_that_cannot_be_read_is_refused_before_ray_starts(
    run: Run, job: list[str], tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    ran = run("dapt.py", *job, f"--corpus.paths={name}")
    assert ran.code == 3, ran.err
    assert ran.out == ""
    assert message in ran.err.splitlines()[-2]
    assert "fix: " in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err
    assert ran.loaded & {"ray", "torch"} == set()


def test_debug_shows_the_stack(run: Run) -> None:
    ran = run("dapt.py", "--debug")
    assert ran.code == 2
    assert "Traceback (most recent call last)" in ran.err
    assert ran.err.splitlines()[-2].startswith("ConfigError: corpus.paths is empty")


# --- what is shown


def test_help_and_print_config_go_to_stdout(run: Run) -> None:
    shown = run("dapt.py", "--help")
    assert (shown.code, shown.err) == (0, "")
    assert "--training.learning_rate" in shown.out
    shown = run("dapt.py", "--print_config", "--training.learning_rate=0.25")
    assert (shown.code, shown.err) == (0, "")
    assert "  learning_rate: 0.25\n" in shown.out
