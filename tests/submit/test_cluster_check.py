"""Tests the checks on a cluster before submission: its storage, and whether its nodes can hold the workers."""

from pathlib import Path

import pytest

from adapt.config import ResourcesConfig
from adapt.runner.mirror import FOLDER
from adapt.submit.cluster_check import (
    NodeKind,
    check_driver,
    check_ever,
    check_storage,
    limits_from,
    limits_in,
    try_bucket,
    try_storage,
    worker_room,
)
from adapt.support.errors import ClusterError, ConfigError, StorageError

HEAD = NodeKind({"CPU": 8}, 1, 1)
GPUS = NodeKind({"CPU": 16, "GPU": 1}, 0, 8)


def test_a_storage_root_without_parent_on_the_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"there is no {tmp_path}/laptop on the cluster"):
        check_storage(tmp_path / "laptop" / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_node_reports_why_it_cannot_use_the_root(tmp_path: Path) -> None:
    sign = tmp_path / ".seen-1"
    assert "does not see" in try_storage(str(sign), "word")
    sign.write_text("another")
    assert "other files" in try_storage(str(sign), "word")
    sign.write_text("word")
    assert try_storage(str(sign), "word") == ""


def test_a_node_reports_why_it_cannot_keep_a_copy_of_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot write" in try_bucket(str(tmp_path / "file" / FOLDER / "aws" / "bucket"))


@pytest.mark.slow
def test_every_node_is_checked_and_no_files_remain(ray_cluster: None, tmp_path: Path) -> None:
    assert check_storage(tmp_path / "runs") == 1
    assert list((tmp_path / "runs").iterdir()) == []


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
        ({}, "it would train on CPUs"),
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
    for enough in (8, (1, 99)):  # the smallest number of workers of a range counts
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
