"""Implements the rules of Kubernetes' Pod Security standard "restricted", which includes "baseline".

They are the rules of https://kubernetes.io/docs/concepts/security/pod-security-standards/ (version 1.34), except the
rules for Windows and for annotations of AppArmor, which no cluster file uses.
"""

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
}
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def violations(pod: dict[str, Any]) -> list[str]:
    """Returns the names of the rules that the specification of a pod breaks."""
    return sorted({*_of_pod(pod), *(rule for container in _containers(pod) for rule in of_container(container, pod))})


def of_container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    """Yields the names of the rules that a container breaks. Some settings may also be made for the whole pod."""
    context, shared = container.get("securityContext", {}), pod.get("securityContext", {})
    capabilities = context.get("capabilities", {})
    if context.get("privileged"):
        yield "privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "privilege escalation"
    if "ALL" not in capabilities.get("drop", []) or {*capabilities.get("add", [])} - {"NET_BIND_SERVICE"}:
        yield "capabilities"
    if context.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True:
        yield "non-root"
    if context.get("runAsUser", shared.get("runAsUser")) == 0:
        yield "non-root user"
    if context.get("seccompProfile", shared.get("seccompProfile", {})).get("type") not in (
        "RuntimeDefault",
        "Localhost",
    ):
        yield "seccomp"
    if context.get("procMount", "Default") != "Default":
        yield "proc mount"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "host ports"
    if not _is_usual_selinux(context):
        yield "SELinux"
    hooks = [container.get("lifecycle", {}).get(name, {}) for name in ("postStart", "preStop")]
    probes = [container.get(f"{name}Probe", {}) for name in ("liveness", "readiness", "startup")]
    if any(handler.get(kind, {}).get("host") for handler in (*hooks, *probes) for kind in ("httpGet", "tcpSocket")):
        yield "hosts of probes"


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    context = pod.get("securityContext", {})
    if any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    if any(not ({*volume} - {"name"}) <= VOLUMES for volume in pod.get("volumes", [])):
        yield "volumes"
    if {each["name"] for each in context.get("sysctls", [])} - SYSCTLS:
        yield "sysctls"
    if not _is_usual_selinux(context):
        yield "SELinux"


def _is_usual_selinux(context: dict[str, Any]) -> bool:
    options = context.get("seLinuxOptions", {})
    return options.get("type", "") in SELINUX_TYPES and not options.get("user") and not options.get("role")


def _containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(field, [])
