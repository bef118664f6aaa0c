"""Tests that the cluster files are valid, and that they agree on versions, paths and tokens."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml

ROOT = Path(__file__).parents[2]
CLOUDS = ["ray-cluster.yaml", "cluster/gcp.yaml", "cluster/azure.yaml"]
LAUNCHED = [*CLOUDS, "cluster/local.yaml"]


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return content


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_accepts_the_files_for_ray_up(name: str) -> None:
    from ray.autoscaler._private.util import fillout_defaults, prepare_config, validate_config

    content = read(name)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(content, schema)
    if content["provider"]["type"] == "local":
        content["provider"].update(head_ip="10.0.0.1", worker_ips=["10.0.0.2", "10.0.0.3"])
        prepared = prepare_config(content)
        assert prepared["max_workers"] == 2
    else:
        prepared = fillout_defaults(content)
    validate_config(prepared)


@pytest.mark.parametrize("name", CLOUDS)
def test_cloud_clusters_start_without_workers_and_add_spot_gpu_nodes(name: str) -> None:
    content = read(name)
    types = dict(content["available_node_types"])
    head = json.dumps(types.pop(content["head_node_type"])).lower()
    assert "spot" not in head
    assert "preemptible" not in head
    for worker in types.values():
        assert worker["min_workers"] == 0
        assert 0 < worker["max_workers"] <= content["max_workers"]
        assert "spot" in (text := json.dumps(worker).lower()) or "preemptible" in text
        assert worker["resources"] == {} or worker["resources"]["GPU"] >= 1


def test_the_files_for_ray_up_have_the_same_setup_and_access() -> None:
    first, *others = (read(name) for name in LAUNCHED)

    def setup(content: dict[str, Any]) -> list[str]:
        """Returns the setup commands without those for a shared file system, which the cluster on AWS does not need."""
        commands = [each.replace(" XDG_CACHE_HOME=/shared/cache", "") for each in content["setup_commands"]]
        return [each.replace("nfs-common ", "") for each in commands if "/shared" not in each]

    key = "~/.config/dontstop/bucket-key"  # the other clusters have the key in their shared file system
    assert first["file_mounts"].pop(key) == key
    for content in others:
        for field in ("cluster_name", "file_mounts", "head_start_ray_commands", "worker_start_ray_commands"):
            assert content[field] == first[field]
        assert setup(content) == setup(first)
        (mounted,) = (command for command in content["setup_commands"] if "mount" in command)
        assert mounted.startswith("mountpoint -q /shared || sudo mount -t nfs")
        assert mounted.endswith("/shared")
        subprocess.run(["bash", "-n", "-c", "\n".join(content["setup_commands"])], check=True)


@pytest.mark.parametrize("name", [*LAUNCHED[1:], "cluster/skypilot.yaml"])
def test_placeholders_are_described_in_comments(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "FILL-IN" in text
    assert "FILL IN" in text


# --- preempted nodes


@pytest.mark.parametrize("name", LAUNCHED)
def test_cloud_workers_have_and_start_the_preemption_watcher(name: str) -> None:
    content = read(name)
    there = "~/dontstop/cluster/preemption.py"
    assert content["file_mounts"][there] == "cluster/preemption.py"
    *_, last = content["worker_start_ray_commands"]
    assert f" python {there} watch " in last
    # the command runs in the background, because `ray up` would wait for it
    assert last.endswith("> /tmp/preemption.log 2>&1 < /dev/null &")
    subprocess.run(["bash", "-n", "-c", last], check=True)


def test_skypilot_nodes_start_the_preemption_watcher() -> None:
    sky = read("cluster/skypilot.yaml")
    assert "python cluster/preemption.py watch > " in sky["run"]
    assert sky["run"].index("preemption.py") < sky["run"].index("ray start")


# --- versions and settings agree between files


def test_versions_agree() -> None:
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    # BASE is a build argument, so that a build can name the base image by its digest
    assert "\nFROM ${BASE}\n" in docker
    (base,) = re.findall(r"^ARG BASE=(.+)$", docker, re.MULTILINE)
    assert f"--build-arg BASE={base}@sha256:" in docker
    # the name of the base image contains an exact patch release of Python
    (python,) = re.findall(r"python:(3\.\d+)\.\d+-slim-\w+", base)
    for name in ("torch", "requirements"):
        assert f"Python {python}, " in (ROOT / "cluster" / f"{name}.txt").read_text()


def locked() -> dict[str, str]:
    """Returns the package versions in the image, keyed by package name."""
    found = {}
    for name in ("torch", "requirements"):
        for line in (ROOT / "cluster" / f"{name}.txt").read_text().splitlines():
            if not line.startswith("#"):
                (pin,) = re.findall(r"^([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$", line)
                found[pin[0]] = pin[1]
    return found


def test_the_image_has_the_tested_versions_by_their_hashes_and_reads_s3() -> None:
    pins = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    image = locked()
    assert image.items() <= pins.items()
    assert {"boto3", "smart-open", "s3fs", "mlflow-skinny", "wandb", "model2vec", "optuna", "setuptools"} <= set(image)
    assert not {"pytest", "mypy", "ruff", "hypothesis", "datasketch"} & set(image)


def test_the_image_installs_by_hash_and_only_pytorch_from_another_index() -> None:
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    run = docker.replace("\\\n", " ")
    installs = [part for line in run.splitlines() if line.startswith("RUN") for part in re.split(r"&&|;", line)]
    installs = [part for part in installs if "pip install" in part]
    for part in installs:
        by_index = "--index-url" in part and "torch.txt" in part
        assert "--no-deps" in part
        assert "--require-hashes" in part or by_index or "--no-build-isolation --editable ." in part
    assert len(installs) == 4
    for file in ("cluster/Dockerfile", "Makefile", "README.md", "docs/guide/clusters.md"):
        assert "--extra-index-url" not in (ROOT / file).read_text()


def test_the_image_runs_without_root_and_finds_its_files() -> None:
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+)$", docker, re.MULTILINE)
    assert user != "0"
    copied = {name for names in re.findall(r"^COPY (.+) \S+/$", docker, re.MULTILINE) for name in names.split()}
    assert all((ROOT / name).is_file() for name in copied)
    everything, *let_in = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert everything == "*"
    assert {name.removeprefix("!") for name in let_in} == copied


_METADATA = """
import sys
sys.path.append(sys.argv[1])
from setuptools import build_meta
print(build_meta.prepare_metadata_for_build_editable("."))
"""
"""Program that reads the metadata as `pip install --editable` does, without the project's own code on its path."""


def test_nodes_and_image_have_all_files_that_the_installation_reads(tmp_path: Path) -> None:
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    copied = {name for names in re.findall(r"^COPY (.+) \S+/$", docker, re.MULTILINE) for name in names.split()}
    mounted = {name for name in read("ray-cluster.yaml")["file_mounts"].values() if not name.startswith("~")}
    for number, files in enumerate((copied, mounted)):
        folder = tmp_path / str(number)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        # -S keeps Python from reading the .pth file that leads to this project
        command = [sys.executable, "-I", "-S", "-c", _METADATA, sysconfig.get_path("purelib")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_nodes_share_a_file_system_or_a_bucket() -> None:
    aws = (ROOT / "ray-cluster.yaml").read_text()
    assert "--storage.root s3://BUCKET/runs" in aws
    assert "/shared" not in aws
    for name in LAUNCHED:
        if name == "ray-cluster.yaml":
            continue
        (profile,) = (command for command in read(name)["setup_commands"] if "~/.bashrc" in command)
        assert "XDG_CACHE_HOME=/shared/cache" in profile


def test_skypilot_keeps_results_in_a_bucket() -> None:
    sky = read("cluster/skypilot.yaml")
    assert sky["envs"]["STORAGE_ROOT"] == "s3://FILL-IN/runs"
    assert '--storage.root "$STORAGE_ROOT" --storage.cache "$CACHE"' in sky["run"]


def test_every_cluster_requires_a_token_and_no_file_contains_one() -> None:
    sky = read("cluster/skypilot.yaml")
    assert sky["secrets"] == {"RAY_AUTH_TOKEN": None, "DONTSTOP_KEY": None}
    assert sky["envs"]["RAY_AUTH_MODE"] == "token"
    assert "RAY_AUTH_MODE=token" in (ROOT / "cluster" / "Dockerfile").read_text()
    for file in (ROOT / "ray-cluster.yaml", *(ROOT / "cluster").rglob("*.y*ml"), ROOT / "cluster" / "Dockerfile"):
        assert not re.search(r"\b[0-9a-f]{32,}\b", file.read_text()), file


def test_the_dashboard_stays_on_loopback_and_commands_are_in_order() -> None:
    for name in LAUNCHED:
        (start,) = (command for command in read(name)["head_start_ray_commands"] if "ray start" in command)
        assert "--dashboard-host 127.0.0.1" in start
    sky = read("cluster/skypilot.yaml")
    assert "--dashboard-host 127.0.0.1" in sky["run"]
    for script in (sky["setup"], sky["run"]):
        subprocess.run(["bash", "-n", "-c", script], check=True)


# --- AWS


class _Template(yaml.SafeLoader):
    """Reads CloudFormation's short forms, such as `!Ref Bucket`, as pairs of function and argument."""


_Template.add_multi_constructor("!", lambda loader, name, node: (name, node.value))


def stack() -> dict[str, Any]:
    content: dict[str, Any] = yaml.load((ROOT / "cluster" / "aws-access.yaml").read_text(), Loader=_Template)
    return content


def test_aws_nodes_have_the_profiles_and_the_group_of_the_stack() -> None:
    resources = stack()["Resources"]
    cluster = read("ray-cluster.yaml")
    names = {kind: resources[f"{kind}Profile"]["Properties"]["InstanceProfileName"] for kind in ("Head", "Worker")}
    assert names == {"Head": ("Sub", "${Cluster}-head"), "Worker": ("Sub", "${Cluster}-worker")}
    assert stack()["Parameters"]["Cluster"]["Default"] == cluster["cluster_name"]
    for kind, node in cluster["available_node_types"].items():
        profile = "head" if kind == "head" else "worker"
        assert node["node_config"]["IamInstanceProfile"] == {"Name": f"{cluster['cluster_name']}-{profile}"}
        assert node["node_config"]["SecurityGroupIds"] == ["sg-FILL-IN"]
        assert node["node_config"]["MetadataOptions"]["HttpTokens"] == "required"
        assert node["node_config"]["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    # with the field `security_group`, Ray would create a security group that opens SSH to everybody
    assert "security_group" not in cluster["provider"]


def test_aws_nodes_may_only_do_what_the_cluster_needs() -> None:
    resources = stack()["Resources"]
    assert "Policies" not in resources["WorkerRole"]["Properties"]
    bucket = resources["BucketAccess"]["Properties"]["PolicyDocument"]["Statement"]
    (policy,) = resources["HeadRole"]["Properties"]["Policies"]
    for statement in (*bucket, *policy["PolicyDocument"]["Statement"]):
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        assert not any("*" in action for action in actions)
        if statement["Resource"] == "*":
            assert all(action.startswith("ec2:Describe") for action in actions)
        elif {*actions} & {"ec2:TerminateInstances", "ec2:CreateTags", "iam:PassRole", "iam:CreateServiceLinkedRole"}:
            assert statement["Condition"]
    assert all("${Bucket}" in statement["Resource"][1] for statement in bucket)
    ingress = resources["Nodes"]["Properties"]["SecurityGroupIngress"]
    assert [(rule["FromPort"], rule["ToPort"], rule["CidrIp"]) for rule in ingress] == [(22, 22, ("Ref", "SshFrom"))]
    assert resources["EachOther"]["Properties"]["SourceSecurityGroupId"] == ("Ref", "Nodes")
    for resource in resources.values():  # every reference in the template names a parameter or a resource
        for function, argument in re.findall(r"\('(Ref|GetAtt)', '([A-Za-z]+)", repr(resource)):
            assert argument in {*stack()["Parameters"], *resources}, function


# --- Hugging Face Jobs


def hf_job(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs cluster/hf-jobs.sh with the real `hf` in a small project. The option --dry-run keeps it from uploading."""
    (tmp_path / ".gitignore").write_text("runs/\n")
    (tmp_path / "study.yaml").write_text("stages: {}\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    keys = {name: f"value-of-{name}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "DONTSTOP_KEY")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", **keys, **variables}
    command = ["bash", str(ROOT / "cluster" / "hf-jobs.sh"), *arguments]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)


def test_hugging_face_accepts_the_job_and_shows_no_secret(tmp_path: Path) -> None:
    done = hf_job(tmp_path, "study.yaml", "s3://bucket/runs", "--dry-run", FLAVOR="a100-large")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "a100-large" in said
    assert "jobs/chain.py run" in said
    assert "study.yaml s3://bucket/runs" in said
    assert "value-of-" not in said


def test_a_hugging_face_job_gets_session_token_and_region_if_they_are_set(tmp_path: Path) -> None:
    variables = {"AWS_SESSION_TOKEN": "value-of-token", "AWS_DEFAULT_REGION": "eu-north-1"}
    done = hf_job(tmp_path, "study.yaml", "s3://bucket/runs", "--dry-run", **variables)
    assert "AWS_SESSION_TOKEN=***" in done.stdout
    assert "AWS_DEFAULT_REGION=eu-north-1" in done.stdout
    done = hf_job(tmp_path, "study.yaml", "s3://bucket/runs", "--dry-run")
    assert "AWS_SESSION_TOKEN" not in done.stdout
    assert "AWS_DEFAULT_REGION" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (("study.yaml", "/runs"), {}, "is not in a bucket"),
        (("other.yaml", "s3://bucket/runs"), {}, "other.yaml does not exist"),
        (("study.yaml", "s3://bucket/runs"), {"DONTSTOP_KEY": ""}, "DONTSTOP_KEY"),
        (("study.yaml",), {}, "storage root"),
    ],
)
def test_a_hugging_face_job_that_would_lose_its_results_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], variables: dict[str, str], named: str
) -> None:
    done = hf_job(tmp_path, *arguments, **variables)
    assert done.returncode != 0
    assert named in done.stderr


def test_a_hugging_face_job_leaves_out_deleted_files_and_needs_an_uploaded_chain(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside.yaml"
    (project / "runs").mkdir(parents=True)
    for file in (outside, project / "runs" / "ignored.yaml", project / "old file.py"):
        file.write_text("stages: {}\n")
    for name in ("runs/ignored.yaml", "../outside.yaml", str(outside)):
        done = hf_job(project, name, "s3://bucket/runs", "--dry-run")
        assert done.returncode == 2
        assert f"{name} is not uploaded" in done.stderr
    subprocess.run(["git", "add", "."], cwd=project, check=True)
    (project / "old file.py").unlink()
    done = hf_job(project, "study.yaml", "s3://bucket/runs", "--dry-run")
    assert done.returncode == 0, done.stderr
