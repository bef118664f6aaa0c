"""Implements the features of Kustomize that the cluster files use, so that tests see the objects of `kubectl apply -k`.

It is stricter than Kustomize: it refuses unknown fields, and patches that change nothing. `kubectl kustomize` gives the
same objects.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
_FIELDS = {
    *("apiVersion", "kind", "resources", "components", "namespace", "images", "patches", "replacements"),
}
_CLUSTER_SCOPED = ("Namespace", "PriorityClass")


def rendered(folder: Path) -> list[Object]:
    """Returns the objects of a kustomization.

    Raises:
        ValueError: a kustomization is wrong.
    """
    return _accumulated(folder, [])


def _accumulated(folder: Path, found: list[Object]) -> list[Object]:
    """Adds the objects of a kustomization to `found`. Only a component may change the objects in `found`."""
    (content,) = _read(folder / "kustomization.yaml")
    if unknown := set(content) - _FIELDS:
        raise ValueError(f"{folder}: unknown fields {unknown}")
    is_component = content["kind"] == "Component"
    objects = list(found) if is_component else []
    for name in content.get("resources", []):
        objects += rendered(folder / name) if (folder / name).is_dir() else _read(folder / name)
    for name in content.get("components", []):
        objects = _accumulated(folder / name, objects)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    if len({*names}) != len(names):
        raise ValueError(f"{folder}: an object occurs twice in {names}")
    for patch in content.get("patches", []):
        changes = yaml.safe_load(patch["patch"]) if "patch" in patch else _read(folder / patch["path"])[0]
        objects = _patched(objects, changes, patch.get("target", {}))
    for each in objects if "namespace" in content else ():
        if each["kind"] == "Namespace":
            each["metadata"]["name"] = content["namespace"]
        elif each["kind"] not in _CLUSTER_SCOPED:
            each["metadata"]["namespace"] = content["namespace"]
    for image in content.get("images", []):
        for container in _containers(objects):
            name, _, tag = container["image"].partition(":")
            if name == image["name"]:
                container["image"] = f"{image['newName']}:{tag}"
    for replacement in content.get("replacements", []):
        (source,) = _selected(objects, replacement["source"])
        for target in replacement["targets"]:
            for each in _selected(objects, target["select"]):
                for path in target["fieldPaths"]:
                    *parents, last = path.split(".")
                    _at(each, parents)[last] = _copy(source[replacement["source"]["fieldPath"]])
    return objects


def _read(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def _copy(value: Any) -> Any:
    return yaml.safe_load(yaml.safe_dump(value))


def _selected(objects: list[Object], selector: Object) -> list[Object]:
    found = [
        each
        for each in objects
        if each["kind"] == selector["kind"]
        and each["metadata"]["name"] == selector.get("name", each["metadata"]["name"])
    ]
    if not found:
        raise ValueError(f"no object matches {selector}")
    return found


def _patched(objects: list[Object], changes: Any, target: Object) -> list[Object]:
    """Applies a patch: a list of JSON patch operations (RFC 6902), or an object to delete."""
    if isinstance(changes, dict):
        if changes.get("$patch") != "delete":
            raise ValueError(f"not a list of operations, and no deletion: {changes}")
        gone = _selected(objects, {"kind": changes["kind"], **changes["metadata"]})
        return [each for each in objects if each not in gone]
    for each in _selected(objects, target):
        for change in changes:
            *parents, last = (part.replace("~1", "/") for part in change["path"].removeprefix("/").split("/"))
            parent = _at(each, parents)
            value = _copy(change["value"])
            match change["op"], parent:
                case "add", list() if last == "-":
                    parent.append(value)
                case "add", dict():
                    parent[last] = value
                case "replace", dict() if last in parent:
                    parent[last] = value
                case _:
                    raise ValueError(f"{change} cannot be applied to {each['kind']}")
    return objects


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def _containers(value: Any) -> Iterator[Object]:
    """Yields all containers in an object. Like Kustomize, it recognizes containers by the names of their fields."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("containers", "initContainers"):
                yield from inner
            yield from _containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _containers(inner)
