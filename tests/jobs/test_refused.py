"""Wrong commands and configurations are refused before Ray starts."""

import gzip
from pathlib import Path

import pytest

from tests.jobs.commands import Run, check_refused, finish, replaced

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("arguments", [["pln"], ["--config", "x.yaml"]])
def test_an_unknown_command_is_refused(run: Run, arguments: list[str]) -> None:
    check_refused(run("chain.py", *arguments), 2, "cannot read the command", "run|plan|status|report")


REFUSED = [
    (["--corpus.paths=[]"], 2, ["ConfigError: corpus.paths is empty", "--corpus.paths"]),
    (["--training.learning_rat=1"], 2, ["unknown key --training.learning_rat", "did you mean training.learning_rate?"]),
    (["--training.learning_rate=-1"], 2, ["training.learning_rate is -1, but must be >0"]),
    (["--config=gone.yaml"], 2, ["gone.yaml: No such file or directory"]),
    (["--training.sequence_length=129"], 2, ["training.sequence_length is 129, but the model takes 128 tokens"]),
    (["--tracking.mlflow_uri=http://me:pass@host"], 2, ["ConfigError: tracking.mlflow_uri holds a password"]),
    (["--resources.workers=3"], 2, ["training.global_batch_size 8 is no multiple of resources.workers 3"]),
    (["--corpus.paths=gone.jsonl"], 3, ["DataError: ", "gone.jsonl matches no file"]),
    (["--corpus.paths=."], 3, ["holds no corpus file"]),
    (["--corpus.paths=notes.doc"], 3, ["notes.doc has no known format"]),
    (["--model.path=./gone"], 4, ["ModelError: there is no model folder ./gone"]),
    (["--model.path=."], 4, ["has no config.json"]),
    (["--model.tokenizer=."], 4, ["holds no tokenizer"]),
    (["--storage.root=notes.doc"], 6, ["StorageError: cannot write ", "notes.doc", "storage.root"]),
]


@pytest.mark.parametrize(("arguments", "code", "messages"), REFUSED, ids=[case[0][0] for case in REFUSED])
def test_wrong_configurations_are_refused_at_once(
    forked: Run, job: list[str], tmp_path: Path, arguments: list[str], code: int, messages: list[str]
) -> None:
    (tmp_path / "notes.doc").write_text("")
    if arguments == ["--corpus.paths=."]:
        (tmp_path / "corpus.jsonl").unlink()
    check_refused(forked("dapt.py", *replaced(job, *arguments)), code, *messages)


TASK_REFUSED = [
    (["--task.dev=[]"], 2, ["ConfigError: task: dev is empty", "--task.dev"]),
    (["--task.test=gone.jsonl"], 3, ["DataError: ", "gone.jsonl matches no file"]),
    (["--task.text_field=body"], 3, ["has no field 'body'", "task.text_field"]),
    (["--task.label_field=lable"], 3, ["has no field 'lable'", "did you mean 'label'?"]),
    (["--finetune.seeds=[]"], 2, ["finetune.seeds is []"]),
    (["--finetune.mode=loRA"], 2, ["finetune.mode takes"]),
    (["--finetune.lerning_rate=1"], 2, ["did you mean finetune.learning_rate?"]),
    (["--select.per_example=0"], 2, ["select.per_example is 0, but must be >0"]),
]


@pytest.mark.parametrize("script", ["tapt.py", "finetune.py"])
@pytest.mark.parametrize(("arguments", "code", "messages"), TASK_REFUSED, ids=[case[0][0] for case in TASK_REFUSED])
def test_wrong_configurations_of_tasks_are_refused_at_once(
    forked: Run, task: list[str], script: str, arguments: list[str], code: int, messages: list[str]
) -> None:
    if script == "tapt.py" and arguments[0].startswith("--task.label"):
        pytest.skip("TAPT does not look at labels before it runs")
    ran = forked(script, *replaced(task, *arguments))
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
def test_wrong_chains_are_refused_at_once(
    forked: Run, tiny_bert: Path, tmp_path: Path, arguments: list[str], code: int, messages: list[str]
) -> None:
    lengths = "training.sequence_length: 128, evaluation.sequence_length: 128"
    (tmp_path / "chain.yaml").write_text(
        f"let: {{data: gone}}\ncommon: {{model.path: '{tiny_bert}', {lengths}}}\nsets: {{task: [a]}}\n"
        "stages: {dapt: {job: dapt, for: task, corpus.paths: '{data}.jsonl'}}\n"
    )
    ran = forked("chain.py", *arguments)
    check_refused(ran, code, *messages)


def test_a_relative_storage_root_on_a_cluster_is_refused_before_connecting(
    forked: Run, job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    check_refused(
        forked("dapt.py", *replaced(job, "--storage.root=runs")),
        2,
        "ConfigError: storage.root is a relative path",
        "all nodes",
    )


def test_a_job_without_arguments_asks_for_the_corpus(run: Run) -> None:
    check_refused(run("dapt.py"), 2, "corpus.paths is empty")


def test_an_unreadable_record_is_named(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = finish(job, tmp_path, monkeypatch)
    (export / "stage.json").write_text("{")
    for script, arguments in (("dapt.py", job), ("chain.py", ["plan", *job])):
        check_refused(run(script, *arguments), 8, f"{export}/stage.json cannot be read", f"delete {export}/stage.json")


BROKEN: list[tuple[str, bytes, str]] = [
    ("corpus.jsonl", b'{"body": "a text", "id": 1}\n', "has no field 'text'; it has 'body', 'id'"),
    ("corpus.jsonl.gz", gzip.compress(b'{"text": "a text"}\n' * 100)[:40], "corpus.jsonl.gz is broken"),
    ("corpus.jsonl.zst", b"no zstd", "corpus.jsonl.zst is not compressed with zstd"),
    ("corpus.parquet", b"no parquet", "corpus.parquet is broken"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_a_corpus_that_cannot_be_read_is_refused_before_ray_starts(
    forked: Run, job: list[str], tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    ran = forked("dapt.py", *replaced(job, f"--corpus.paths={name}"))
    assert ran.code == 3, ran.err
    assert ran.out == ""
    assert message in ran.err.splitlines()[-2]
    assert "fix: " in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err
    assert ran.loaded & {"ray", "torch"} == set()
