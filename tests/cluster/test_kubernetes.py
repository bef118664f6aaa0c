"""Tests that the objects for Kubernetes are valid, secure, and do what their comments say."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.submit.cluster_check import NODE_GROUPS, limits_from
from adapt.train.metric_trackers import PREFIX
from tests.cluster.kustomize import rendered
from tests.cluster.pod_security import violations

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "cluster" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
OBJECTS = {name: rendered(FOLDER / "overlays" / name) for name in OVERLAYS}
"""Objects that `kubectl apply -k` creates for each overlay."""
TOKEN = "dontstop-token"
OF_KUBERAY = {"ray.io/is-ray-node": "yes", "ray.io/cluster": "dontstop"}
"""Labels that KubeRay adds to its pods, in addition to `ray.io/node-type`."""

# Fields of ray.io/v1 in the CRDs of KubeRay 1.7, as far as these tests need them.
CLUSTER_FIELDS = {
    *("rayVersion", "enableInTreeAutoscaling", "authOptions", "autoscalerOptions", "headGroupSpec", "workerGroupSpecs"),
    *("suspend", "gcsFaultToleranceOptions", "headServiceAnnotations", "managedBy", "upgradeStrategy"),
}
JOB_FIELDS = {
    *("entrypoint", "runtimeEnvYAML", "submissionMode", "submitterConfig", "backoffLimit", "activeDeadlineSeconds"),
    *("suspend", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec", "deletionStrategy"),
    *("jobId", "metadata", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "clusterSelector"),
    *("submitterPodTemplate", "preRunningDeadlineSeconds"),
}
GROUP_FIELDS = {
    *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template", "numOfHosts", "suspend"),
    *("idleTimeoutSeconds", "labels", "resources", "scaleStrategy"),
}
AUTOSCALER_FIELDS = {
    *("version", "idleTimeoutSeconds", "upscalingMode", "resources", "image", "imagePullPolicy", "env", "envFrom"),
    *("volumeMounts", "securityContext"),
}
RECOVERY_FIELDS = {"backend", "storage", "redisAddress", "redisPassword", "redisUsername", "externalStorageNamespace"}


def find(overlay: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in OBJECTS[overlay] if each["kind"] == kind]


def cluster_of(overlay: str) -> dict[str, Any]:
    """Returns the specification of the overlay's Ray cluster, from its RayCluster or from its RayJob."""
    clusters = [each["spec"] for each in find(overlay, "RayCluster")]
    (spec,) = clusters or [each["spec"]["rayClusterSpec"] for each in find(overlay, "RayJob")]
    found: dict[str, Any] = spec
    return found


def templates(overlay: str) -> dict[str, dict[str, Any]]:
    """Returns the templates of the overlay's Ray pods, keyed by `head` or `worker`."""
    spec = cluster_of(overlay)
    (group,) = spec["workerGroupSpecs"]
    return {"head": spec["headGroupSpec"]["template"], "worker": group["template"]}


def pods(overlay: str) -> list[dict[str, Any]]:
    """Returns the specifications of all pods of an overlay."""
    jobs = [job["spec"]["submitterPodTemplate"]["spec"] for job in find(overlay, "RayJob")]
    return [template["spec"] for template in templates(overlay).values()] + jobs


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kuberay_accepts_the_fields(overlay: str) -> None:
    spec = cluster_of(overlay)
    assert set(spec) <= CLUSTER_FIELDS
    assert set(spec["autoscalerOptions"]) <= AUTOSCALER_FIELDS
    assert set(spec["headGroupSpec"]) <= GROUP_FIELDS
    assert all(set(group) <= GROUP_FIELDS for group in spec["workerGroupSpecs"])
    assert set(spec.get("gcsFaultToleranceOptions", {})) <= RECOVERY_FIELDS
    for kind, fields, longest in (("RayCluster", CLUSTER_FIELDS, 53), ("RayJob", JOB_FIELDS, 47)):
        for each in find(overlay, kind):
            assert each["apiVersion"] == "ray.io/v1"
            assert set(each["spec"]) <= fields
            assert len(each["metadata"]["name"]) <= longest


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_pass_pod_security_restricted(overlay: str) -> None:
    (namespace,) = find(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(overlay):
        assert violations(pod) == []
    # KubeRay adds the autoscaler's container to the head's pod. It also adds a container to the workers' pods, but with
    # the security context that this test has already checked.
    autoscaler = {"securityContext": cluster_of(overlay)["autoscalerOptions"]["securityContext"]}
    assert violations({**templates(overlay)["head"]["spec"], "initContainers": [autoscaler]}) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"securityContext": {"runAsNonRoot": False}}, "non-root"),
        ({"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, "non-root user"),
        ({"hostNetwork": True}, "host namespaces"),
        ({"volumes": [{"name": "disk", "hostPath": {"path": "/"}}]}, "volumes"),
        ({"securityContext": {"runAsNonRoot": True}}, "seccomp"),
        ({"initContainers": [{"name": "one"}]}, "capabilities"),
        ({"initContainers": [{"name": "one"}]}, "privilege escalation"),
        ({"initContainers": [{"ports": [{"hostPort": 80}]}]}, "host ports"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "sysctls"),
    ],
)
def test_the_check_of_pod_security_finds_violations(change: dict[str, Any], rule: str) -> None:
    assert rule in violations({**templates("volume")["worker"]["spec"], **change})


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_other_pods_can_reach_only_the_dashboard(overlay: str) -> None:
    (policy,) = (each for each in find(overlay, "NetworkPolicy") if each["metadata"]["name"] == "dontstop-ray")
    assert policy["apiVersion"] == "networking.k8s.io/v1"
    pods = {"matchLabels": {"ray.io/is-ray-node": "yes"}}
    assert policy["spec"]["podSelector"] == pods
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    each_other, others = policy["spec"]["ingress"]
    assert each_other == {"from": [{"podSelector": pods}]}
    assert others["ports"] == [{"protocol": "TCP", "port": 8265}]
    to_each_other, *elsewhere = policy["spec"]["egress"]
    assert to_each_other == {"to": [{"podSelector": pods}]}
    assert {port["port"] for rule in elsewhere if "to" not in rule for port in rule["ports"]} == {53, 443, 6443}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_drained_machine_keeps_the_head_and_may_evict_workers(overlay: str) -> None:
    (budget,) = (each["spec"] for each in find(overlay, "PodDisruptionBudget"))
    assert budget["minAvailable"] == 1
    assert "maxUnavailable" not in budget  # Kubernetes allows `maxUnavailable` only for pods of its own controllers
    selected = budget["selector"]["matchLabels"].items()
    for kind, template in templates(overlay).items():
        labels = {**template["metadata"]["labels"], **OF_KUBERAY, "ray.io/node-type": kind}
        assert (selected <= labels.items()) == (kind == "head")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_head_has_priority_and_workers_displace_no_pod(overlay: str) -> None:
    classes = {each["metadata"]["name"]: each for each in find(overlay, "PriorityClass")}
    head, worker = (classes[template["spec"]["priorityClassName"]] for template in templates(overlay).values())
    assert head["value"] > worker["value"] > 0
    assert worker["preemptionPolicy"] == "Never"
    assert not any(each.get("globalDefault") for each in classes.values())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_head_is_off_spot_nodes_and_workers_prefer_them(overlay: str) -> None:
    head, worker = (template["spec"]["affinity"]["nodeAffinity"] for template in templates(overlay).values())
    (term,) = head["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    refused = {(each["key"], *each["values"]) for each in term["matchExpressions"] if each["operator"] == "NotIn"}
    assert len(refused) == len(term["matchExpressions"]) == 5
    preferred = {
        (each["key"], *each["values"])
        for choice in worker["preferredDuringSchedulingIgnoredDuringExecution"]
        for each in choice["preference"]["matchExpressions"]
    }
    assert preferred < refused
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in worker
    tolerated = {each["key"] for each in templates(overlay)["worker"]["spec"]["tolerations"]}
    assert {"nvidia.com/gpu", "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"} == tolerated


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_accounts_and_only_the_head_may_use_the_api(overlay: str) -> None:
    accounts = {each["metadata"]["name"]: each for each in find(overlay, "ServiceAccount")}
    assert {template["spec"]["serviceAccountName"] for template in templates(overlay).values()} == set(accounts)
    assert templates(overlay)["worker"]["spec"]["automountServiceAccountToken"] is False
    for job in find(overlay, "RayJob"):
        assert job["spec"]["submitterPodTemplate"]["spec"]["automountServiceAccountToken"] is False
    spec = cluster_of(overlay)
    assert spec["authOptions"] == {"mode": "token", "secretName": TOKEN}
    with_bucket = "components/bucket\n" in (FOLDER / "overlays" / overlay / "kustomization.yaml").read_text()
    for account in accounts.values():
        assert ("eks.amazonaws.com/role-arn" in account["metadata"].get("annotations", {})) == with_bucket


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_limits_and_mount_what_exists(overlay: str) -> None:
    for pod in pods(overlay):
        names = {each["name"] for each in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= names
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            assert len({*paths}) == len(paths)
    claims = {each["metadata"]["name"] for each in find(overlay, "PersistentVolumeClaim")}
    for template in templates(overlay).values():
        volumes = template["spec"]["volumes"]
        assert {
            each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each
        } == claims
        ray = template["spec"]["containers"][0]
        cache = environment(ray)["XDG_CACHE_HOME"]
        assert any(cache.startswith(mount["mountPath"]) for mount in ray["volumeMounts"])
    with_bucket = "components/bucket\n" in (FOLDER / "overlays" / overlay / "kustomization.yaml").read_text()
    # overlays that store results in a bucket need no shared volume
    assert claims == (set() if with_bucket else {"dontstop-shared"})


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_gpu_groups_start_empty_and_submit_knows_their_size(overlay: str) -> None:
    spec = cluster_of(overlay)
    assert spec["enableInTreeAutoscaling"] is True
    (group,) = spec["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"]) == (0, 0)
    assert group["maxReplicas"] > 0
    worker, head = (templates(overlay)[kind]["spec"]["containers"][0] for kind in ("worker", "head"))
    for device in ("nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"):
        assert worker["resources"]["limits"].get(device) == worker["resources"]["requests"].get(device)
    requested = worker["resources"]["requests"]
    of_a_node = {"CPU": float(requested["cpu"]), "GPU": float(requested["nvidia.com/gpu"])}
    assert limits_from(environment(head)[NODE_GROUPS]) == [(of_a_node, group["maxReplicas"])]


def test_pods_with_several_gpus_have_shared_memory_and_the_fast_network() -> None:
    pod = templates("efa")["worker"]["spec"]
    worker = pod["containers"][0]
    assert worker["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert worker["resources"]["requests"]["vpc.amazonaws.com/efa"] == "4"
    assert {"FI_PROVIDER": "efa", "NCCL_SOCKET_IFNAME": "eth0"}.items() <= environment(worker).items()
    assert len(worker["env"]) == len(environment(worker))
    memory = next(each for each in pod["volumes"] if each["name"] == "memory")
    assert memory["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "p4d.24xlarge"}


def test_a_job_has_the_cluster_of_the_volume_overlay_and_limits() -> None:
    assert cluster_of("job") == cluster_of("volume")
    assert find("job", "RayCluster") == []
    (queued,) = find("job", "RayJob")
    job = queued["spec"]
    assert job["suspend"] is True
    assert job["shutdownAfterJobFinishes"] is True
    assert job["backoffLimit"] > 0
    assert job["activeDeadlineSeconds"] > 0
    assert yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]
    assert job["submitterPodTemplate"]["spec"]["restartPolicy"] == "Never"  # Kubernetes Jobs require a restart policy
    assert "--storage.root /shared/runs" in job["entrypoint"]
    subprocess.run(["bash", "-n", "-c", job["entrypoint"]], check=True)
    # with autoscaling, Kueue requires the annotation
    assert "kueue.x-k8s.io/queue-name" in queued["metadata"]["labels"]
    assert queued["metadata"]["annotations"]["kueue.x-k8s.io/elastic-job"] == "true"


def test_a_new_head_in_production_finds_the_state_of_the_old_one() -> None:
    recovery = cluster_of("production")["gcsFaultToleranceOptions"]
    assert recovery["backend"] == "rocksdb"
    # only one node may mount the volume, because a second head would damage the state
    assert recovery["storage"]["accessModes"] == ["ReadWriteOnce"]


def test_prometheus_may_read_the_metrics_port_and_alerts_use_existing_metrics() -> None:
    (monitor,) = find("production", "PodMonitor")
    for kind, template in templates("production").items():
        labels = {**template["metadata"]["labels"], **OF_KUBERAY, "ray.io/node-type": kind}
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == ["metrics"]
    (policy,) = (each for each in find("production", "NetworkPolicy") if each["metadata"]["name"] == "dontstop-metrics")
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 8080}]

    (rules,) = find("production", "PrometheusRule")
    alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) == 6
    import ray.dashboard.modules.reporter.reporter_agent as reporter

    of_nodes = {f"ray_{name}" for name in re.findall(r'"(node_\w+)"', Path(reporter.__file__).read_text())}
    shown = {
        name
        for name in re.findall(r"ray_\w+", (ROOT / "cluster" / "grafana.json").read_text())
        if name.startswith(f"ray_{PREFIX}")
    }
    others = {"up", "kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes"}
    for rule in alerts:
        used = {*re.findall(r"\b(?:ray|kubelet)_(?!io)\w+|\bup\b", rule["expr"])}
        assert used
        assert used <= of_nodes | shown | others
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_a_container_next_to_ray_ships_the_logs() -> None:
    (config,) = find("production", "ConfigMap")
    (name,) = config["data"]
    for template in templates("production").values():
        pod = template["spec"]
        ray, shipper = pod["containers"]
        (written,) = (mount for mount in ray["volumeMounts"] if mount["mountPath"] == "/tmp/ray")
        (read,) = (mount for mount in shipper["volumeMounts"] if mount["mountPath"] == "/tmp/ray")
        assert (read["name"], read["readOnly"]) == (written["name"], True)
        (mounted,) = (volume for volume in pod["volumes"] if volume.get("configMap"))
        assert mounted["configMap"]["name"] == config["metadata"]["name"]
        assert shipper["command"][-1] == f"--config=/config/{name}"
        assert shipper["securityContext"]["readOnlyRootFilesystem"] is True
    (tail,) = yaml.safe_load(config["data"][name])["pipeline"]["inputs"]
    assert all(path.startswith("/tmp/ray/session_latest/logs/") for path in tail["path"].split(","))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_start_the_preemption_watcher_and_save_before_they_end(overlay: str) -> None:
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    (folder,) = re.findall(r"^WORKDIR (/opt/.+)$", docker, re.MULTILINE)
    assert re.search(r"^COPY .*cluster/preemption\.py.* cluster/$", docker, re.MULTILINE)
    pod = templates(overlay)["worker"]["spec"]
    worker = pod["containers"][0]
    shell, option, command = worker["lifecycle"]["postStart"]["exec"]["command"]
    assert (shell, option) == ("bash", "-c")
    assert f"python {folder}/cluster/preemption.py watch > " in command
    # the watcher runs in the background, because the pod only becomes ready when the hook has ended
    assert command.endswith("&")
    subprocess.run(["bash", "-n", "-c", command], check=True)
    program, file, verb, given, seconds = worker["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, file, verb, given) == ("python", f"{folder}/cluster/preemption.py", "stop", "--seconds")
    assert 30 < int(seconds) < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_and_versions_agree(overlay: str) -> None:
    ray = re.search(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert ray
    assert cluster_of(overlay)["rayVersion"] == ray[1]
    docker = (ROOT / "cluster" / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\d+)$", docker, re.MULTILINE)
    assert user != "0"
    for pod in pods(overlay):
        assert str(pod["securityContext"]["runAsUser"]) == user
        name, tag = pod["containers"][0]["image"].split(":")
        assert name == "FILL-IN/dontstop"
        assert f"dontstop:{tag}" in docker  # the Dockerfile must describe the image's tag, which is `cpu` or `cuda`


def test_placeholders_are_described_in_comments_and_commands_create_the_token() -> None:
    for path in FOLDER.rglob("*.yaml"):
        if "FILL-IN" in (text := path.read_text()):
            assert "FILL IN" in text, path
        assert not re.search(r"\b[0-9a-f]{32,}\b", text), path
    first = (FOLDER / "overlays" / "volume" / "kustomization.yaml").read_text()
    assert f"create secret generic {TOKEN} --from-literal=auth_token=" in first
    assert "--storage.root /shared/runs" in first
    other = (FOLDER / "overlays" / "bucket" / "kustomization.yaml").read_text()
    assert "--storage.root s3://BUCKET/runs --storage.cache /cache" in other
    assert "--from-literal=DONTSTOP_KEY=" in other
