"""Checks the lists in docs/develop/design.md, which show the calls that a job makes.

Each listed call exists in the source code, and no call goes to a higher layer of the code.
"""

import ast
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("adapt/cli", "adapt/job", "adapt/runner", "adapt/stage", "adapt/train", "ray")
"""Layers of the code from top to bottom.

Calls go downwards. The runner does not import any particular stage. It only uses their base class `Stage`.
"""
MOST = 9
"""Maximum number of calls in a list."""
HOP = re.compile(
    r"^\d+\. `([\w/]+\.py)`(?:, `([\w.]+)`,)? calls\s+`([\w.]+)`(?:, here `([\w/]+\.py)`, `([\w.]+)`)?", re.MULTILINE
)


@dataclass(frozen=True)
class Place:
    """A function or class, given by its file and its name in the file. The name of a script is empty."""

    file: str
    name: str = ""


@dataclass(frozen=True)
class Hop:
    """A call from one function to another."""

    start: Place
    called: str
    """Name by which the source calls the function."""
    here: Place | None
    """The called function, if the source calls it through a variable or field. Otherwise None."""


def roads() -> list[list[Hop]]:
    """Returns the numbered lists of calls in a section of docs/develop/design.md."""
    text = (ROOT / "docs" / "develop" / "design.md").read_text(encoding="utf-8")
    section = text.split("\n## The road of a job\n")[1].split("\n## ")[0]
    found = []
    for block in re.split(r"\n\n(?!\d)", section):
        hops = [
            Hop(Place(file, name), called, Place(other, impl) if other else None)
            for file, name, called, other, impl in HOP.findall(block.replace("\n   ", " "))
        ]
        assert len(hops) == len(re.findall(r"^\d+\. ", block, re.MULTILINE)), f"a line of another form:\n{block}"
        found += [hops] if hops else []
    return found


# --- reading the source


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def body(place: Place) -> ast.AST:
    """Returns the syntax tree of a function, a method, or the main part of a script."""
    found: ast.AST = tree(place.file)
    if not place.name:
        (found,) = (each for each in tree(place.file).body if isinstance(each, ast.If))
        assert ast.unparse(found.test) == "__name__ == '__main__'"
        return found
    for name in place.name.split("."):
        (found,) = (each for each in definitions(found) if each.name == name)
    return found


def definitions(node: ast.AST) -> list[ast.FunctionDef | ast.ClassDef]:
    return [each for each in getattr(node, "body", []) if isinstance(each, ast.FunctionDef | ast.ClassDef)]


def imported(name: str, *scopes: ast.AST) -> str:
    """Returns the full name of an imported name, such as `adapt.runner.ensure`.

    It is empty if the name is not imported.
    """
    for scope in scopes:
        for node in ast.walk(scope):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if (alias.asname or alias.name) == name:
                    return f"{node.module}.{alias.name}"  # type: ignore[attr-defined]
    return ""


def place_of(dotted: str) -> Place:
    """Returns the function or class with a dotted name.

    Names that a package re-exports are followed to their module.
    """
    module, _, name = dotted.rpartition(".")
    file = module.replace(".", "/")
    if dotted.split(".")[0] not in ("adapt", "jobs"):
        return Place(dotted.split(".")[0], name)
    if (ROOT / file).is_dir():
        return place_of(imported(name, tree(f"{file}/__init__.py")))
    return Place(f"{file}.py", name)


def named(name: str, place: Place) -> Place:
    """Returns the function or class that a name refers to inside a function."""
    if name in [each.name for each in definitions(tree(place.file))]:
        return Place(place.file, name)
    return place_of(imported(name, body(place), tree(place.file)))


def target(hop: Hop) -> Place:
    """Returns the function that a listed call refers to, as read from the source.

    Raises:
        LookupError: the source has no such call, or the list names a function that the call cannot reach.
    """
    calls = [ast.unparse(node.func) for node in ast.walk(body(hop.start)) if isinstance(node, ast.Call)]
    if hop.called not in calls:
        raise LookupError(f"{hop.start} does not call {hop.called}")
    first, _, method = hop.called.partition(".")
    if not method:
        return named(first, hop.start)
    function = body(hop.start)
    arguments = function.args.args if isinstance(function, ast.FunctionDef) else []
    annotations = {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation}
    kind = named(annotations.get(first, first).partition("[")[0], hop.start)
    if hop.here is None:
        return Place(kind.file, f"{kind.name}.{method}")
    if not (_implements(hop.here, kind, method) or _is_given(hop.here, kind, method)):
        raise LookupError(f"{hop.here} is no {kind.name}.{method}")
    return hop.here


def _implements(place: Place, kind: Place, method: str) -> bool:
    """Returns whether a method belongs to a class that inherits from the class `kind`."""
    owner, _, name = place.name.partition(".")
    classes = [each for each in definitions(tree(place.file)) if isinstance(each, ast.ClassDef) and each.name == owner]
    bases = [
        named(ast.unparse(base).partition("[")[0], Place(place.file, owner)) for each in classes for base in each.bases
    ]
    return name == method and kind in bases and isinstance(body(place), ast.FunctionDef)


def _is_given(place: Place, kind: Place, field: str) -> bool:
    """Returns whether a function is passed as a field of a constructed object, as in `JOB = Job(final=dapt)`."""
    made = [
        node.value
        for node in tree(place.file).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
    ]
    return any(
        named(call.func.id, Place(place.file, place.name)) == kind  # type: ignore[attr-defined]
        and {each.arg: ast.unparse(each.value) for each in call.keywords}.get(field) == place.name
        for call in made
    )


def layer(place: Place) -> int:
    """Returns the index of the layer that a function belongs to, counted from the top."""
    (found,) = (number for number, name in enumerate(LAYERS) if place.file == name or place.file.startswith(f"{name}/"))
    return found


def faults(road: list[Hop]) -> list[str]:
    """Returns descriptions of the errors in a list of calls."""
    found: list[str] = []
    for number, hop in enumerate(road):
        try:
            place = target(hop)
        except (LookupError, ValueError) as error:
            return [*found, f"{number + 1}: {error}"]
        if layer(place) < layer(hop.start):
            found.append(f"{number + 1}: goes upwards, from {hop.start} to {place}")
        if number + 1 < len(road) and road[number + 1].start != place:
            found.append(f"{number + 1}: leads to {place}, and not to {road[number + 1].start}")
    return found


# --- the lists of calls on the design page agree with the source


@pytest.mark.parametrize("number", [0, 1])
def test_every_hop_is_a_call_in_the_source_and_none_goes_upwards(number: int) -> None:
    assert faults(roads()[number]) == []


def test_the_path_leads_from_the_script_to_ray_in_few_hops() -> None:
    running, building = roads()
    assert running[0].start == Place("adapt/job/job_run.py", "carry_out")
    assert target(running[-1]) == Place("ray", "TorchTrainer")
    assert building[0].start in [hop.start for hop in running]
    assert target(building[-1]) == Place("adapt/stage/train.py", "Train.of")
    assert len(running) <= MOST


# --- the test detects errors in a list of calls


def test_a_missing_hop_is_noticed() -> None:
    road = roads()[0]
    for number in range(1, len(road)):
        assert faults([*road[:number], *road[number + 1 :]]) != [] or number == len(road) - 1


def test_a_call_that_is_not_in_the_source_is_noticed() -> None:
    road = roads()[0]
    for number, hop in enumerate(road):
        assert f"{number + 1}: {hop.start} does not call fly" in faults(
            [*road[:number], replace(hop, called="fly"), *road[number + 1 :]]
        )


def test_a_wrong_called_value_is_noticed() -> None:
    running, building = roads()
    for road, number in ((running, 5), (building, 0)):
        hop = replace(road[number], here=Place("adapt/train/ray_train.py", "launch"))
        assert "is no " in faults([*road[:number], hop])[0]


def test_a_call_upwards_is_noticed() -> None:
    hop = Hop(Place("adapt/stage/context.py", "Context.of"), "share_with_group", None)
    assert "goes upwards" in faults([hop])[0]
