"""Tests that the cluster files are valid, and that they agree on versions, paths and tokens."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml

from adapt.submit.cluster_check import NODE_GROUPS, limits_from

ROOT = Path(__file__).parents[2]
CLOUDS = ["ray-cluster.yaml", "cluster/gcp.yaml", "cluster/azure.yaml"]
LAUNCHED = [*CLOUDS, "cluster/local.yaml"]
KUBERAY = ["cluster/kuberay/raycluster.yaml", "cluster/kuberay/rayjob.yaml"]
VERSION = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]  # type: ignore[index]
TOKEN = "dontstop-token"

# Fields of KubeRay 1.7's ray.io/v1 as named in its CRDs, as far as these tests need them.
CLUSTER_FIELDS = {
    *("rayVersion", "enableInTreeAutoscaling", "authOptions", "autoscalerOptions", "headGroupSpec", "workerGroupSpecs"),
    *("suspend", "gcsFaultToleranceOptions", "headServiceAnnotations", "managedBy", "upgradeStrategy"),
}
JOB_FIELDS = {
    *("entrypoint", "runtimeEnvYAML", "submissionMode", "submitterConfig", "backoffLimit", "activeDeadlineSeconds"),
    *("suspend", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec", "deletionStrategy"),
    *("jobId", "metadata", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "clusterSelector"),
}
GROUP_FIELDS = {
    *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template", "numOfHosts", "suspend"),
    *("idleTimeoutSeconds", "labels", "resources", "scaleStrategy"),
}
AUTOSCALER_FIELDS = {
    *("version", "idleTimeoutSeconds", "upscalingMode", "resources", "image", "imagePullPolicy", "env", "envFrom"),
    *("volumeMounts", "securityContext"),
}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return content


def clusters() -> list[dict[str, Any]]:
    """Returns KubeRay's specification of the cluster from raycluster.yaml, and that from rayjob.yaml."""
    return [read(KUBERAY[0])["spec"], read(KUBERAY[1])["spec"]["rayClusterSpec"]]


def pods(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


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
        return [command for command in content["setup_commands"] if "mount" not in command]

    for content in others:
        for field in ("cluster_name", "file_mounts", "head_start_ray_commands", "worker_start_ray_commands"):
            assert content[field] == first[field]
        assert setup(content) == setup(first)
        (mounted,) = (command for command in content["setup_commands"] if "mount" in command)
        assert mounted.startswith("mountpoint -q /shared || sudo mount -t nfs")
        assert mounted.endswith("/shared")
        subprocess.run(["bash", "-n", "-c", "\n".join(content["setup_commands"])], check=True)


@pytest.mark.parametrize("name", [*LAUNCHED[1:], *KUBERAY, "cluster/skypilot.yaml", "cluster/kuberay/storage.yaml"])
def test_placeholders_are_described_in_comments(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "FILL-IN" in text
    assert "FILL IN" in text


# --- Kubernetes


def test_kuberay_accepts_the_fields() -> None:
    cluster, job = read(KUBERAY[0]), read(KUBERAY[1])
    assert {(each["apiVersion"], each["kind"]) for each in (cluster, job)} == {
        ("ray.io/v1", "RayCluster"),
        ("ray.io/v1", "RayJob"),
    }
    assert len(cluster["metadata"]["name"]) <= 53
    assert len(job["metadata"]["name"]) <= 47
    assert set(job["spec"]) <= JOB_FIELDS
    for spec in clusters():
        assert set(spec) <= CLUSTER_FIELDS
        assert set(spec["autoscalerOptions"]) <= AUTOSCALER_FIELDS
        assert set(spec["headGroupSpec"]) <= GROUP_FIELDS
        assert all(set(group) <= GROUP_FIELDS for group in spec["workerGroupSpecs"])


def test_other_pods_can_reach_only_the_dashboard() -> None:
    policy = read("cluster/kuberay/network.yaml")
    assert (policy["apiVersion"], policy["kind"]) == ("networking.k8s.io/v1", "NetworkPolicy")
    pods = {"matchLabels": {"ray.io/is-ray-node": "yes"}}
    assert policy["spec"]["podSelector"] == pods
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    each_other, others = policy["spec"]["ingress"]
    assert each_other == {"from": [{"podSelector": pods}]}
    assert others["ports"] == [{"protocol": "TCP", "port": 8265}]


def test_a_job_has_the_cluster_of_the_other_file_and_limits() -> None:
    one, other = clusters()
    assert one == other
    job = read(KUBERAY[1])["spec"]
    assert job["suspend"] is True
    assert job["shutdownAfterJobFinishes"] is True
    assert job["backoffLimit"] > 0
    assert job["activeDeadlineSeconds"] > 0
    assert yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]
    queued = read(KUBERAY[1])["metadata"]
    assert "kueue.x-k8s.io/queue-name" in queued["labels"]
    assert other["enableInTreeAutoscaling"] is True  # with autoscaling, Kueue requires the annotation
    assert queued["annotations"]["kueue.x-k8s.io/elastic-job"] == "true"


# --- preempted nodes


@pytest.mark.parametrize("name", LAUNCHED)
def test_cloud_workers_have_and_start_the_preemption_watcher(name: str) -> None:
    content = read(name)
    there = "~/dontstop/cluster/preemption.py"
    assert content["file_mounts"][there] == "cluster/preemption.py"
    *_, last = content["worker_start_ray_commands"]
    assert f" python {there} watch " in last
    # `ray up` does not wait for a command in the background
    assert last.endswith("> /tmp/preemption.log 2>&1 < /dev/null &")
    subprocess.run(["bash", "-n", "-c", last], check=True)


def test_pods_start_the_preemption_watcher_and_save_before_they_end() -> None:
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    (folder,) = re.findall(r"^WORKDIR (/opt/.+)$", docker, re.MULTILINE)
    assert re.search(r"^COPY .*cluster/preemption\.py.* cluster/$", docker, re.MULTILINE)
    for spec in clusters():
        (group,) = spec["workerGroupSpecs"]
        pod = group["template"]["spec"]
        (worker,) = pod["containers"]
        shell, option, command = worker["lifecycle"]["postStart"]["exec"]["command"]
        assert (shell, option) == ("bash", "-c")
        assert f"python {folder}/cluster/preemption.py watch > " in command
        assert command.endswith("&")  # in the background, because the pod is only ready after the hook has ended
        subprocess.run(["bash", "-n", "-c", command], check=True)
        program, file, verb, given, seconds = worker["lifecycle"]["preStop"]["exec"]["command"]
        assert (program, file, verb, given) == ("python", f"{folder}/cluster/preemption.py", "stop", "--seconds")
        assert 30 < int(seconds) < pod["terminationGracePeriodSeconds"]


def test_skypilot_nodes_start_the_preemption_watcher() -> None:
    sky = read("cluster/skypilot.yaml")
    assert "python cluster/preemption.py watch > " in sky["run"]
    assert sky["run"].index("preemption.py") < sky["run"].index("ray start")


def test_gpu_groups_start_empty_and_pods_have_limits_and_no_root() -> None:
    for spec in clusters():
        assert spec["enableInTreeAutoscaling"] is True
        (group,) = spec["workerGroupSpecs"]
        assert (group["replicas"], group["minReplicas"]) == (0, 0)
        assert group["maxReplicas"] > 0
        (worker,) = group["template"]["spec"]["containers"]
        assert worker["resources"]["limits"]["nvidia.com/gpu"] == worker["resources"]["requests"]["nvidia.com/gpu"]
        assert [volume["name"] for volume in group["template"]["spec"]["volumes"]] == ["shared", "memory"]
        (head,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
        told = {each["name"]: each["value"] for each in head["env"]}[NODE_GROUPS]
        asked = worker["resources"]["requests"]
        of_a_node = {"CPU": float(asked["cpu"]), "GPU": float(asked["nvidia.com/gpu"])}
        assert limits_from(told) == [(of_a_node, group["maxReplicas"])]
        for pod in pods(spec):
            assert pod["securityContext"]["runAsNonRoot"] is True
            (container,) = pod["containers"]
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= {each["name"] for each in pod["volumes"]}


# --- consistency of the files


def test_versions_agree() -> None:
    for spec in clusters():
        assert spec["rayVersion"] == VERSION
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    assert "\nFROM ${BASE}\n" in docker  # a build argument, so that a build can name the image by its digest
    (base,) = re.findall(r"^ARG BASE=(.+)$", docker, re.MULTILINE)
    assert f"--build-arg BASE={base}@sha256:" in docker
    (python,) = re.findall(r"python:(3\.\d+)\.\d+-slim-\w+", base)  # an exact patch release
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
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[re.sub(r"[-_.]+", "-", name).lower()] = version
    image = locked()
    cuda = re.compile("triton|nvidia-.*|cuda-.*")  # packages that torch pins
    assert {name: version for name, version in image.items() if not cuda.fullmatch(name)}.items() <= pins.items()
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


def test_the_image_runs_as_the_user_of_the_pods_and_finds_its_files() -> None:
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+)$", docker, re.MULTILINE)
    assert user != "0"
    for spec in clusters():
        for pod in pods(spec):
            assert str(pod["securityContext"]["runAsUser"]) == user
            assert pod["containers"][0]["image"].split(":")[1] in docker  # the tag is `cpu` or `cuda`
    copied = {name for names in re.findall(r"^COPY (.+) \S+/$", docker, re.MULTILINE) for name in names.split()}
    assert all((ROOT / name).is_file() for name in copied)
    everything, *let_in = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert everything == "*"
    assert {name.removeprefix("!") for name in let_in} == copied


def test_paths_agree() -> None:
    cache = read("cluster/runtime_env.yaml")["env_vars"]["XDG_CACHE_HOME"]
    assert cache == read("cluster/skypilot.yaml")["envs"]["XDG_CACHE_HOME"] == "/shared/cache"
    claim = read("cluster/kuberay/storage.yaml")["metadata"]["name"]
    for spec in clusters():
        for pod in pods(spec):
            (container,) = pod["containers"]
            assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]
            assert {"name": "XDG_CACHE_HOME", "value": cache} in container["env"]
            assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
    assert list(read("cluster/skypilot.yaml")["file_mounts"]) == ["/shared"]
    for name in ("ray-cluster.yaml", KUBERAY[0], KUBERAY[1], "cluster/skypilot.yaml"):
        assert "--storage.root /shared/runs" in (ROOT / name).read_text()


def test_every_cluster_requires_a_token_and_no_file_contains_one() -> None:
    for spec in clusters():
        assert spec["authOptions"] == {"mode": "token", "secretName": TOKEN}
    assert f"kubectl create secret generic {TOKEN} --from-literal=auth_token=" in (ROOT / KUBERAY[0]).read_text()
    sky = read("cluster/skypilot.yaml")
    assert sky["secrets"] == {"RAY_AUTH_TOKEN": None}
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
    for script in (sky["setup"], sky["run"], read(KUBERAY[1])["spec"]["entrypoint"]):
        subprocess.run(["bash", "-n", "-c", script], check=True)
