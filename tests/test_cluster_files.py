"""Tests that Ray accepts the files for clusters, and that they do what their comments say."""

import json
import re
import subprocess
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ray._private.runtime_env.packaging import create_package
from ray.runtime_env import RuntimeEnv

from adapt.runner.secret import key_file

ROOT = Path(__file__).parents[1]
INSTALLED = {canonicalize_name(each.name) for each in metadata.distributions()}


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "ray-cluster.yaml").read_text()


@pytest.fixture(scope="module")
def launched(text: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def test_ray_accepts_the_cluster_file(launched: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import fillout_defaults, validate_config

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(launched, schema)
    validate_config(fillout_defaults(launched))


def test_the_cluster_grows_spot_workers_and_keeps_its_head(launched: dict[str, Any]) -> None:
    types = dict(launched["available_node_types"])
    head = types.pop(launched["head_node_type"])
    assert "InstanceMarketOptions" not in head["node_config"]
    assert types
    for worker in types.values():
        assert worker["min_workers"] == 0
        assert 0 < worker["max_workers"] <= launched["max_workers"]
        assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
        assert worker["node_config"]["InstanceType"] != head["node_config"]["InstanceType"]
        assert worker["node_config"]["ImageId"] == head["node_config"]["ImageId"]


def test_the_cluster_answers_only_to_the_token(launched: dict[str, Any]) -> None:
    (start,) = (command for command in launched["head_start_ray_commands"] if "ray start" in command)
    assert "--dashboard-host 127.0.0.1" in start
    assert "--autoscaling-config ~/ray_bootstrap_config.yaml" in start
    (profile,) = (command for command in launched["setup_commands"] if "~/.bashrc" in command)
    assert "RAY_AUTH_MODE=token" in profile  # Every command runs in a shell that reads this profile.
    assert launched["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


def test_a_new_head_has_the_key_that_signed_the_checkpoints(
    launched: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    key = key_file(tmp_path / "dontstop-buckets" / "aws" / "bucket+runs")
    assert f"~/{key.relative_to(tmp_path)}" in launched["file_mounts"]


def test_commands_are_valid_shell(launched: dict[str, Any]) -> None:
    commands = [command for name, listed in launched.items() if name.endswith("_commands") for command in listed]
    assert len(commands) == 10
    for command in commands:
        assert "\n" not in command
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_nodes_install_the_pinned_packages(launched: dict[str, Any]) -> None:
    assert "make --directory ~/dontstop node" in launched["setup_commands"]
    mounted = {there: here for there, here in launched["file_mounts"].items() if there.startswith("~/dontstop/")}
    assert {"Makefile", "pyproject.toml", "constraints.txt"} <= set(mounted.values())
    for there, here in mounted.items():
        assert there == f"~/dontstop/{here}"
        assert (ROOT / here).is_file()
    project = (ROOT / "pyproject.toml").read_text()
    for field in ("readme", "license-files"):  # the installation fails without the files that pyproject.toml names
        (named,) = re.findall(rf'^{field} = \[?"(.+?)"', project, re.MULTILINE)
        assert named in mounted.values()


def pins_of(target: str, folder: Path) -> set[str]:
    """Returns the names of the packages that `make TARGET` installs by hash."""
    command = ["make", "--dry-run", target, f"VENV={folder}/venv"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (select,) = (line for line in said.splitlines() if line.startswith("awk "))
    (folder / "venv").mkdir()
    subprocess.run(["sh", "-c", select], cwd=ROOT, check=True)
    pinned = (folder / "venv" / "pinned.txt").read_text()
    assert all(" --hash=" in entry for entry in re.split(r"^(?=\w)", pinned, flags=re.MULTILINE)[1:])
    return {*re.findall(r"^(\S+)==", pinned, re.MULTILINE)}


def needed(name: str, extras: frozenset[str], found: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Returns the names of all installed packages that a package needs here, with the dependencies of dependencies."""
    if (name, extras) not in found and name in INSTALLED:
        found.add((name, extras))
        for requirement in map(Requirement, metadata.requires(name) or ()):
            chosen = [{"extra": extra} for extra in extras or {""}]
            if not requirement.marker or any(map(requirement.marker.evaluate, chosen)):
                needed(canonicalize_name(requirement.name), frozenset(requirement.extras), found)
    return {name for name, _ in found}


@pytest.mark.parametrize(("target", "extras"), [("env", ["dev"]), ("demo", [])])
def test_the_hashes_cover_all_dependencies(tmp_path: Path, target: str, extras: list[str]) -> None:
    found = needed("dontstop", frozenset(extras), set())
    of_torch = {name for name in found if re.fullmatch("torch|triton|nvidia-.*|cuda-.*", name)}
    assert len(found) > 100
    assert found - of_torch - {"dontstop", "pip"} <= pins_of(target, tmp_path)


def test_pytorch_has_the_pinned_version_and_no_other_package_comes_from_its_index(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "node", f"VENV={tmp_path}/venv", "TORCH_INDEX=https://host/cpu"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    by_hash, torch, project = (line for line in said.splitlines() if "pip install" in line)
    assert "--no-deps --require-hashes" in by_hash
    assert "--no-deps --index-url https://host/cpu" in torch
    assert "https://" not in by_hash + project
    assert "--no-deps --no-build-isolation" in project  # with build isolation, setuptools would come without hash
    (version,) = re.findall(r'"(\$\(sed .+\))"$', torch)
    shown = subprocess.run(["sh", "-c", f"echo {version}"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"torch==[\d.]+\n", shown.stdout)


def test_nodes_install_no_development_packages(tmp_path: Path) -> None:
    installed = pins_of("node", tmp_path)
    assert {"ray", "deepspeed", "setuptools", "boto3", "s3fs", "mlflow-skinny"} <= installed
    assert not {"pytest", "mypy", "moto", "gliner"} & installed


@pytest.mark.parametrize("target", ["demo", "cluster"])
def test_the_demo_installs_no_extras(tmp_path: Path, target: str) -> None:
    installed = pins_of(target, tmp_path)
    assert {"ray", "deepspeed", "setuptools"} <= installed
    assert not {"pytest", "boto3", "optuna", "wandb"} & installed


def test_a_development_environment_runs_the_demo_without_installing(tmp_path: Path) -> None:
    def dry(target: str) -> str:
        command = ["make", "--dry-run", target, f"VENV={tmp_path}/venv"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "pip install" in dry("env")
    (marks,) = (line for line in dry("env").splitlines() if line.startswith("touch "))
    (tmp_path / "venv").mkdir()
    for mark in marks.split()[1:]:
        Path(mark).touch()
    assert "pip install" not in dry("demo") + dry("env")
    Path(f"{tmp_path}/venv/.installed").unlink()
    assert "pip install" in dry("env")


def test_placeholders_are_marked(text: str) -> None:
    gaps = [line for line in text.splitlines() if "FILL-IN" in line]
    assert ["ami-" in gaps[0], "sg-" in gaps[1], len(gaps)] == [True, True, 2]
    assert text.count("# FILL IN: ") == len(gaps)


# --- files of a job


@pytest.fixture(scope="module")
def environment() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "cluster" / "runtime_env.yaml").read_text())
    return content


def test_ray_accepts_the_runtime_environment(environment: dict[str, Any]) -> None:
    accepted = RuntimeEnv(**environment)
    assert accepted.working_dir() == "."
    assert accepted["excludes"] == environment["excludes"]
    # jobs set no environment variables, because nodes have those of their cluster
    assert not environment.get("env_vars")


def test_a_job_uploads_the_code_and_no_large_files(environment: dict[str, Any], tmp_path: Path) -> None:
    left = ["data/big.jsonl", "runs/train/x/stage.json", ".venv/bin/python", ".git/HEAD", ".mypy_cache/a", ".git/b/c"]
    taken = ["adapt/corpus/data.py", "adapt/data/runs.py", "jobs/dapt.py", "jobs/recipes/demo.yaml", "my.yaml"]
    for name in (*left, *taken):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(name)
    found = package(tmp_path / "project", tmp_path / "small.zip", environment)
    assert sorted(found) == sorted(taken)

    found = package(ROOT, tmp_path / "this.zip", environment)
    assert {"jobs/dapt.py", "jobs/recipes/demo.yaml", "adapt/train/worker.py", "pyproject.toml"} <= found
    assert (tmp_path / "this.zip").stat().st_size < 10e6


def package(project: Path, target: Path, environment: dict[str, Any]) -> set[str]:
    """Returns the names of the files that Ray uploads as the working directory."""
    create_package(str(project), target, include_gitignore=True, excludes=environment["excludes"])
    with zipfile.ZipFile(target) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}
