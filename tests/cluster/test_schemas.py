"""Tests that the objects for Kubernetes and the CloudFormation template fit their schemas.

The fields of Kubernetes come from the package lightkube, which is generated from Kubernetes' own description, and those
of CloudFormation from cfn-lint. `tests/cluster/test_kubernetes.py` has the fields of KubeRay.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cluster.kustomize import rendered

ROOT = Path(__file__).parents[2]
OVERLAYS = ROOT / "cluster" / "kubernetes" / "overlays"
OBJECTS = {path.name: rendered(path) for path in sorted(OVERLAYS.iterdir())}
OTHERS = ("ray.io/", "monitoring.coreos.com/")
"""API groups that do not belong to Kubernetes itself."""


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """Returns the schema of an object that may have no other fields."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TEXT, TEXTS = {"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": r"^(0|(\d+d)?(\d+h)?(\d+m)?(\d+s)?)$", "minLength": 1}
METADATA = closed(["name", "namespace"], name=TEXT, namespace=TEXT, labels=LABELS)
RULE = closed(["expr", "alert"], alert=TEXT, expr=TEXT, labels=LABELS, annotations=LABELS, **{"for": DURATION})
GROUP = closed(["name", "rules"], name=TEXT, interval=DURATION, rules={"type": "array", "items": RULE, "minItems": 1})
ENDPOINT = closed(["port"], port=TEXT, path=TEXT, interval=DURATION, scrapeTimeout=DURATION)
MONITORING = {
    "PodMonitor": closed(
        ["selector", "podMetricsEndpoints"],
        selector=closed(["matchLabels"], matchLabels=LABELS),
        podTargetLabels=TEXTS,
        podMetricsEndpoints={"type": "array", "items": ENDPOINT, "minItems": 1},
    ),
    "PrometheusRule": closed(["groups"], groups={"type": "array", "items": GROUP, "minItems": 1}),
}
"""Schemas of the Prometheus operator's objects (monitoring.coreos.com/v1), with the fields that the project uses."""


def misfits(value: Any, read: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of fields that are in an object but not in the struct into which lightkube has read it."""
    if isinstance(value, dict) and hasattr(read, "__struct_fields__"):
        names = dict(zip(read.__struct_encode_fields__, read.__struct_fields__, strict=True))
        for name, inner in value.items():
            if name in names:
                yield from misfits(inner, getattr(read, names[name]), f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(value, list) and isinstance(read, list):
        for number, (inner, of) in enumerate(zip(value, read, strict=True)):
            yield from misfits(inner, of, f"{path}[{number}]")


def pod_templates(value: Any) -> Iterator[dict[str, Any]]:
    """Yields the templates of pods inside one of KubeRay's objects."""
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        if name in ("template", "submitterPodTemplate"):
            yield inner
        else:
            yield from pod_templates(inner)


@pytest.mark.parametrize("overlay", OBJECTS)
def test_kubernetes_knows_all_fields_and_their_types(overlay: str) -> None:
    codecs = pytest.importorskip("lightkube.codecs", reason="lightkube is not installed: run `make env`")
    from lightkube.models.core_v1 import PodTemplateSpec

    own = [each for each in OBJECTS[overlay] if not each["apiVersion"].startswith(OTHERS)]
    assert len(own) >= 6
    for each in own:
        assert list(misfits(each, codecs.from_dict(each), each["kind"])) == []
    templates = [found for each in OBJECTS[overlay] for found in pod_templates(each.get("spec", {}))]
    assert len(templates) >= 2
    for template in templates:
        assert list(misfits(template, PodTemplateSpec.from_dict(template), "template")) == []


def test_an_unknown_field_and_a_wrong_type_are_found() -> None:
    codecs = pytest.importorskip("lightkube.codecs", reason="lightkube is not installed: run `make env`")
    meta = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"}}
    wrong = {**meta, "spec": {"minAvailible": 1, "selector": {"matchLabels": {"any": "label"}}}}
    assert list(misfits(wrong, codecs.from_dict(wrong))) == [".spec.minAvailible"]
    with pytest.raises(Exception, match="selector"):
        codecs.from_dict({**meta, "spec": {"selector": "any"}})


def test_the_prometheus_operator_accepts_monitor_and_alerts() -> None:
    found = [each for each in OBJECTS["production"] if each["apiVersion"] == "monitoring.coreos.com/v1"]
    assert {each["kind"] for each in found} == MONITORING.keys()
    for each in found:
        assert set(each) == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.validate(each["metadata"], METADATA)
        jsonschema.validate(each["spec"], MONITORING[each["kind"]])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            {"groups": [{"name": "a", "rules": [{"alert": "b", "exp": "up"}]}]}, MONITORING[each["kind"]]
        )


@pytest.mark.heavy
def test_cloudformation_accepts_the_template() -> None:
    pytest.importorskip("cfnlint", reason="cfn-lint is not installed: run `make env`")
    program = "import sys, cfnlint.runner; sys.exit(cfnlint.runner.main())"
    command = [sys.executable, "-c", program, "cluster/aws-access.yaml", "--regions", "us-east-1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
