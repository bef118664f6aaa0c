"""Tests the checks before submission: a cluster's storage and nodes, and the files and arguments for the cluster."""

from pathlib import Path

import pytest

from adapt.config import ResourcesConfig
from adapt.runner.mirror import FOLDER
from adapt.submit.cluster_check import (
    NodeKind,
    check_driver,
    check_environment,
    check_ever,
    check_no_secrets,
    check_size,
    check_storage,
    inside,
    kinds_of_nodes,
    limits_from,
    limits_in,
    runtime_environment,
    try_bucket,
    try_storage,
    worker_room,
    working_directory,
)
from adapt.support.errors import ClusterError, ConfigError, StorageError

HEAD = NodeKind({"CPU": 8}, 1, 1)
GPUS = NodeKind({"CPU": 16, "GPU": 1}, 0, 8)


def test_a_storage_root_without_parent_on_the_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"the folder {tmp_path}/laptop does not exist on the cluster"):
        check_storage(tmp_path / "laptop" / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_node_reports_why_it_cannot_use_the_root(tmp_path: Path) -> None:
    sign = tmp_path / ".seen-1"
    assert "does not see" in try_storage(str(sign), "word")
    sign.write_text("another")
    assert "its files there differ" in try_storage(str(sign), "word")
    sign.write_text("word")
    assert try_storage(str(sign), "word") == ""


def test_a_cluster_without_a_key_for_the_checkpoints_in_a_bucket_is_warned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DONTSTOP_KEY", raising=False)
    root = tmp_path / FOLDER / "aws" / "bucket"
    check_environment([], root)
    assert "no DONTSTOP_KEY" in capsys.readouterr().err
    check_environment([], tmp_path)  # in a folder, the key is next to the results
    (tmp_path / "dontstop" / "bucket-key").write_text("0123456789abcdef")
    check_environment([], root)
    (tmp_path / "dontstop" / "bucket-key").unlink()
    monkeypatch.setenv("DONTSTOP_KEY", "0123456789abcdef")
    check_environment([], root)
    assert capsys.readouterr().err == ""


def test_a_node_reports_why_it_cannot_keep_a_copy_of_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot write" in try_bucket(str(tmp_path / "file" / FOLDER / "aws" / "bucket"))


@pytest.mark.slow
def test_every_node_is_checked_and_no_files_remain(ray_cluster: None, tmp_path: Path) -> None:
    assert check_storage(tmp_path / "runs") == 1
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("present", [0, 3, 9])
def test_present_nodes_are_subtracted_once_from_groups_of_the_same_size(
    present: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, spot = {"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0, "spot": 1.0}
    alive = [{"Alive": True, "Resources": {**size, "memory": 1.0}}] * present
    monkeypatch.setattr("adapt.submit.cluster_check.ray.nodes", lambda: [*alive, {"Alive": False, "Resources": spot}])
    monkeypatch.setattr("adapt.submit.cluster_check.autoscaler_limits", lambda: [(spot, 4), (size, 4)])
    kinds, grows = kinds_of_nodes()
    assert grows
    assert worker_room(size, kinds) == max(8, present)
    assert worker_room({"spot": 1}, kinds) == (4 if present < 4 else 0)


def test_room_for_workers_is_counted_per_node() -> None:
    assert worker_room({"CPU": 3}, [HEAD]) == 2
    assert worker_room({"CPU": 4, "GPU": 1}, [HEAD, GPUS]) == 8
    assert worker_room({"CPU": 32}, [HEAD, GPUS]) == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"workers": 9, "gpus_per_worker": 1}, r"9 workers with 1 CPU, 1 GPU each can never run.*room for 8 at most"),
        ({"gpus_per_worker": 2}, "room for 0 at most"),
        ({"gpus_per_worker": 0, "cpus_per_worker": 17}, "can never run"),
        ({}, "the job would train on CPUs"),
    ],
)
def test_workers_that_can_never_fit_are_refused(asked: dict[str, float], message: str) -> None:
    with pytest.raises(ClusterError, match=message) as caught:
        check_ever(ResourcesConfig(**asked), [HEAD, GPUS], grows=True)  # type: ignore[arg-type]
    assert caught.value.fix


@pytest.mark.parametrize("asked", [{"workers": 8, "gpus_per_worker": 1}, {"workers": 8, "gpus_per_worker": 0}])
def test_workers_that_fit_after_growth_are_accepted(asked: dict[str, float]) -> None:
    check_ever(ResourcesConfig(**asked), [HEAD, GPUS], grows=True)  # type: ignore[arg-type]


def test_drive_on_needs_a_node_with_the_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "adapt.submit.cluster_check.kinds_of_nodes", lambda: ([HEAD, NodeKind({"CPU": 4, "steady": 1}, 0, 2)], True)
    )
    check_driver("steady")
    with pytest.raises(ClusterError, match="has the resource stedy") as caught:
        check_driver("stedy")
    assert """ray start --resources '{"stedy": 1}'""" in caught.value.fix


def test_a_cluster_that_cannot_grow_has_only_its_present_nodes() -> None:
    for enough in (8, (1, 99)):  # for a range of workers, only the minimum number must fit
        check_ever(ResourcesConfig(workers=enough), [HEAD], grows=False)
    with pytest.raises(ClusterError, match="1 node with 8 CPU"):
        check_ever(ResourcesConfig(workers=9), [HEAD], grows=False)


def test_limits_are_read_from_the_environment_without_an_autoscaler() -> None:
    assert limits_from("[{CPU: 8, GPU: 1, most: 8}, {CPU: 2, most: 3}]") == [({"CPU": 8, "GPU": 1}, 8), ({"CPU": 2}, 3)]
    assert limits_from("") == []
    for wrong in ("8", "[{CPU: 8}]", "[{CPU: many, most: 2}]", "[{", "[8]"):
        with pytest.raises(ConfigError, match="not a list of groups of nodes"):
            limits_from(wrong)


def test_the_limits_of_a_cluster_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "max_workers: 4\nhead_node_type: head\navailable_node_types:\n"
        "  head: {resources: {CPU: 8}}\n  gpu: {resources: {CPU: 16, GPU: 1}, max_workers: 8}\n"
        "  cpu: {resources: {CPU: 2}, max_workers: 3}\n"
    )
    assert limits_in(file) == [({"CPU": 16, "GPU": 1}, 4), ({"CPU": 2}, 3)]
    assert limits_in(tmp_path / "missing.yaml") == limits_in(None) == []
    file.write_text("# nothing yet\n")
    assert limits_in(file) == []


def environment(root: Path, **given: object) -> dict[str, object]:
    return {"working_dir": str(root), "excludes": ["/runs/"], **given}


def test_a_large_working_directory_is_refused_and_its_largest_folders_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights.bin").write_bytes(bytes(3000))
    (tmp_path / "small.py").write_bytes(bytes(100))
    with pytest.raises(ConfigError, match=r"models/weights.bin") as caught:
        check_size(environment(tmp_path), most=2000)
    assert str(tmp_path / ".rayignore") in caught.value.fix
    assert check_size(environment(tmp_path), most=4000) == 3100


def test_excluded_files_do_not_count(tmp_path: Path) -> None:
    for folder in ("runs", "data", "git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "large").write_bytes(bytes(5000))
    (tmp_path / ".rayignore").write_text("data/\n")
    (tmp_path / ".gitignore").write_text("git/\n")
    assert check_size(environment(tmp_path), most=1000) < 100


def test_this_project_is_within_the_limit() -> None:
    root = Path(__file__).resolve().parents[2]
    made = runtime_environment(root)
    assert check_size(made) < 20e6
    assert (
        float(made["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) > 3
    )  # otherwise, Ray would kill a stopped job before its training has ended


def test_paths_are_rewritten_relative_to_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("")
    given = [str(tmp_path / "my.yaml"), f"--config={tmp_path / 'my.yaml'}", "--data", "/shared/x.yaml", "--seed=1"]
    assert inside(given, tmp_path) == ["my.yaml", "--config=my.yaml", "--data", "/shared/x.yaml", "--seed=1"]


def test_a_file_outside_of_the_working_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "my.yaml").write_text("")
    with pytest.raises(ConfigError, match="is outside"):
        inside([str(tmp_path / "my.yaml")], tmp_path / "project")


def test_a_folder_that_is_not_the_projects_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="not the project's folder"):
        working_directory()


@pytest.mark.parametrize(
    "secret",
    [
        "--tracking.mlflow_uri=https://me:pass@host/x",
        "s3://key:word@bucket",
        "https://h/f?signature=abc",
        "https://h/f#access_token=abc",
        "--mine.api_key=abc",
    ],
)
def test_secrets_on_the_command_line_are_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ConfigError, match="password or a signature") as caught:
        check_no_secrets(["chain.yaml", secret])
    assert not any(word in str(caught.value) for word in ("pass@", "word@", "abc"))
    check_no_secrets(["chain.yaml", "--corpus.paths", "s3://bucket/x.jsonl"])
    check_no_secrets(["chain.yaml", "--corpus.paths=abfss://box@account.dfs.core.windows.net/x.jsonl"])


@pytest.mark.parametrize("variable", ["HF_TOKEN: abc", "MINE: https://me:pass@host", "WANDB_API_KEY: abc"])
def test_secrets_in_the_environment_of_jobs_are_refused(variable: str, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "runtime_env.yaml").write_text(f"env_vars:\n  {variable}\n")
    with pytest.raises(ConfigError, match=f"sets {variable.partition(':')[0]}, which has a secret") as caught:
        runtime_environment(tmp_path)
    assert not any(word in str(caught.value) for word in ("abc", "pass@"))
