"""Checks with `ast` which modules import which others. A new import between parts needs an entry in ALLOWED."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("adapt", "cluster", "jobs", "tune_spaces")

BASE = frozenset({"support", "terminal", "config"})
GROUND = BASE | {"runner", "show"}

# For each part of `adapt`, the other parts that it may import.
ALLOWED: dict[str, frozenset[str]] = {
    "support": frozenset(),
    "terminal": frozenset({"support"}),
    "config": BASE,
    # `parse` reads the options of methods, objectives, selections, embedders and export formats
    "parse": BASE | {"method", "objective", "select", "embed", "handover"},
    "runner": BASE,
    "ray": BASE | {"runner"},  # `ray` reports stalled tasks through `runner`
    "corpus": GROUND | {"ray", "model"},  # `corpus` uses the tokenizer, which is in `model`
    "objective": GROUND | {"model"},  # `objective` runs a model's head, only at the predicted positions
    "model": GROUND,
    # `select` uses losses of models, word counts, and vectors
    "select": GROUND | {"corpus", "model", "evaluate", "embed", "index", "ray"},
    # `method` may import `ray` and `train` only as INSIDE allows
    "method": GROUND | {"objective", "model", "merge", "corpus", "ray", "train"},
    "train": GROUND | {"method", "objective", "model", "corpus", "ray"},
    "evaluate": GROUND | {"train", "model", "objective", "corpus", "ray", "task", "statistics"},
    "statistics": BASE,
    "task": GROUND | {"corpus", "model", "ray"},
    # fine-tuning finds entities in labelled words
    "finetune": GROUND | {"task", "train", "model", "ray", "statistics"},
    "handover": GROUND | {"model", "task"},  # `handover` exports a task with the model, for SetFit and GLiNER
    "advise": GROUND | {"evaluate", "task", "corpus", "model", "train", "method", "ray", "vocabulary"},
    "merge": GROUND | {"model"},
    # `vocabulary` uses the FLOPs of training, which `train` computes
    "vocabulary": GROUND | {"corpus", "model", "objective", "train"},
    "show": BASE,
    # `report` compares results of the parts `evaluate`, `select` and so on
    "report": GROUND | {"statistics", "progress", "stage", "evaluate", "select"},
    "progress": GROUND | {"train"},  # `progress` reads the reports of running training
    # `generate` cleans text like a corpus, and reads documents like a pool
    "generate": GROUND | {"corpus", "embed", "model", "ray"},
    "index": GROUND | {"ray"},
    "embed": GROUND | {"index", "corpus", "model", "ray", "train"},  # `embed` uses threads and metrics of `train`
}
ALLOWED["stage"] = frozenset(ALLOWED)
ALLOWED["job"] = GROUND | {"stage", "parse", "progress", "corpus", "model", "method", "merge"}
ALLOWED["job"] |= {"advise", "evaluate", "generate", "select", "ray"}
ALLOWED["tuning"] = GROUND | {"evaluate", "report", "parse", "job", "stage", "statistics", "ray", "train"}
ALLOWED["tuning"] |= {"progress", "task"}
ALLOWED["chain"] = GROUND | {"model", "parse", "job", "stage", "report", "progress", "tuning", "statistics"}
ALLOWED["api"] = GROUND | {"advise", "chain", "evaluate", "job", "model", "parse", "ray", "stage"}
ALLOWED["api"] |= {"progress", "tuning"}
ALLOWED["submit"] = GROUND | {"chain", "statistics", "job", "model", "parse", "ray", "stage", "progress"}
ALLOWED["cli"] = GROUND | {"api", "chain", "job", "parse", "report", "stage", "submit", "progress", "tuning"}
ALLOWED["cli"] |= {"corpus", "evaluate", "model", "task", "train"}  # `dontstop init` inspects a user's files and model
ALLOWED["cli"] |= {"handover"}  # `dontstop push` sends a folder
ALLOWED["cli"] |= {"ray"}  # `dontstop doctor` checks Ray

# For each part, the parts that it may import only inside functions. The modules in OF_STAGES are an exception. Stages
# of methods run on a cluster, but the hooks that training calls do not, and `train` is a higher layer.
INSIDE: dict[str, frozenset[str]] = {"method": frozenset({"ray", "train"})}
OF_STAGES = {f"adapt/method/{name}.py" for name in ("das/stage", "das/unit_sizes", "measurement", "row_sums")}

# For each folder next to `adapt`, the parts of `adapt` and the other folders that it may import.
ALLOWED_BESIDE: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "jobs": (frozenset({"cli"}), frozenset()),
    "tune_spaces": (BASE, frozenset()),
    "cluster": (BASE | {"runner", "ray", "stage", "submit", "model"}, frozenset()),  # the demo's model is in `model`
}

WITHOUT_RAY = frozenset({"objective", "model", "method", "runner"})
DEEPSPEED_ONLY_IN = ("adapt/train/engine.py", "adapt/train/deepspeed_parts.py")

# Parts that must not load slow libraries, so that a run with nothing to do ends quickly.
LIGHT = GROUND | {"parse", "progress", "stage", "job", "chain", "api", "cli"}
HEAVY = frozenset(
    {
        *("torch", "ray", "transformers", "deepspeed", "datasets", "pandas", "scipy", "sklearn"),
        *("faiss", "matplotlib", "tensorboard", "mlflow", "wandb"),
    }
)


class Import(NamedTuple):
    """A name that a file imports: `from a.b import c` imports the name a.b.c."""

    line: int
    name: str
    # Whether the import runs when the module is loaded: not inside a function, not under `if TYPE_CHECKING`.
    at_top: bool


def imports(source: str, path: str) -> Iterator[Import]:
    """Yields the imports of a file, including imports inside functions and importlib calls with constant names."""
    parts = Path(path).with_suffix("").parts
    package = parts[:-1]  # For `a/b.py` and `a/__init__.py`, the package is `a`.

    def visit(node: ast.AST, at_top: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(node.lineno, alias.name, at_top)
            case ast.ImportFrom():
                start = package[: len(package) - node.level + 1] if node.level else ()
                module = ".".join((*start, *([node.module] if node.module else ())))
                for alias in node.names:
                    yield Import(node.lineno, f"{module}.{alias.name}", at_top)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(node.lineno, name, at_top)
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                for child in node.body:
                    yield from visit(child, False)
                for child in node.orelse:
                    yield from visit(child, at_top)
                return
        inside = at_top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source, path), True)


WITHIN_SHOW = ("report", "progress")
"""Folders of `adapt/show` that count as separate parts: reports compare results of stages, progress shows chains."""


def part_of(path: str) -> str:
    """Returns the part of `adapt` that a file belongs to, or '' for adapt/__init__.py and files outside `adapt`."""
    parts = path.removesuffix(".py").split("/")
    if parts[0] != "adapt" or parts[1] == "__init__":
        return ""
    return parts[2] if parts[1] == "show" and parts[2] in WITHIN_SHOW else parts[1]


def part_named(dotted: str) -> str:
    """Returns the part of `adapt` that defines a dotted name, or '' for names in adapt/__init__.py."""
    _, name, inner, *_ = [*dotted.split("."), "", ""]
    name = inner if name == "show" and inner in WITHIN_SHOW else name
    return name if name in ALLOWED else ""


def violations(source: str, path: str) -> Iterator[str]:
    """Yields the imports of a file that break the rules. `path` is relative to the root, with slashes."""
    folder, part = path.split("/")[0], part_of(path)

    if folder == "adapt" and part and part not in ALLOWED:
        yield f"{path}:1: adapt.{part} has no place among the layers: give it one in {Path(__file__).name}"
        return
    if folder == "adapt":
        may_import, may_import_beside = ALLOWED.get(part, frozenset()), frozenset[str]()
        rule = f"adapt.{part} -> {', '.join(sorted(may_import))}" if part else "adapt/__init__.py -> nothing"
    else:
        may_import, may_import_beside = ALLOWED_BESIDE[folder]
        names = [f"adapt.{name}" for name in sorted(may_import)] + sorted(may_import_beside)
        rule = f"{folder} -> {', '.join(names)}"

    for found in imports(source, path):
        where, target = f"{path}:{found.line}", found.name.split(".")[0]
        if target == "adapt":
            other = part_named(found.name)
            if other and other != part and other not in may_import:
                yield f"{where}: imports adapt.{other}, but the rule is {rule}"
            elif other in INSIDE.get(part, ()) and found.at_top and path not in OF_STAGES:
                yield f"{where}: imports adapt.{other} at the top, but the rule is: inside functions"
        elif target in (*FOLDERS, "benchmarks", "tests") and target != folder and target not in may_import_beside:
            yield f"{where}: imports {target}, but the rule is {rule}"
        elif target == "ray" and part in WITHOUT_RAY:
            yield f"{where}: imports ray, but the rule is: no ray in {', '.join(sorted(WITHOUT_RAY))}"
        elif target == "deepspeed" and path not in DEEPSPEED_ONLY_IN:
            yield f"{where}: imports deepspeed, but the rule is: deepspeed only in {', '.join(DEEPSPEED_ONLY_IN)}"
        if target in HEAVY and found.at_top and part in LIGHT:
            yield f"{where}: imports {target} at the top, but the rule is: {part} loads no heavy library by itself"


def sources() -> list[str]:
    return sorted(p.relative_to(ROOT).as_posix() for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))


def test_every_import_respects_the_layers():
    broken = [message for path in sources() for message in violations((ROOT / path).read_text("utf-8"), path)]
    assert not broken, "\n" + "\n".join(broken)


def test_light_modules_load_no_slow_libraries_indirectly():
    paths = [path for path in sources() if part_of(path) in LIGHT]
    names = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths]
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = sorted({set(HEAVY)!r} & set(sys.modules))\n"
        "    if heavy:\n"
        "        sys.exit(f'loading {name} loads {heavy}')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


CAUGHT = [
    ("adapt/support/errors.py", "from adapt.config import Config", "adapt/support/errors.py:1: imports adapt.config"),
    ("adapt/runner/ensure.py", "\nfrom adapt import train", "adapt/runner/ensure.py:2: imports adapt.train"),
    ("adapt/model/load.py", "from ..train.engine import A", "imports adapt.train, but the rule is adapt.model ->"),
    ("adapt/model/load.py", "def f():\n    import adapt.corpus", "adapt/model/load.py:2: imports adapt.corpus"),
    (
        "adapt/method/weight_pulls.py",
        "def f():\n    from ray import train",
        "no ray in method, model, objective, runner",
    ),
    ("adapt/model/load.py", "if TYPE_CHECKING:\n    import ray", "adapt/model/load.py:2: imports ray"),
    ("adapt/method/weight_pulls.py", "from adapt.train.over_rows import A", "imports adapt.train at the top"),
    ("adapt/train/loop.py", "import deepspeed.comm", "deepspeed only in adapt/train/engine.py"),
    ("adapt/train/loop.py", "importlib.import_module('deepspeed')", "deepspeed only in adapt/train/engine.py"),
    ("jobs/dapt.py", "import adapt.train.ray_train", "jobs/dapt.py:1: imports adapt.train, but the rule is jobs ->"),
    ("adapt/stage/a.py", "from jobs.dapt import main", "adapt/stage/a.py:1: imports jobs"),
    ("adapt/stage/a.py", "def f():\n    from adapt.job import dapt", "adapt/stage/a.py:2: imports adapt.job"),
    ("adapt/stage/a.py", "import torch", "adapt/stage/a.py:1: imports torch at the top"),
    ("adapt/job/a.py", "from adapt.chain.chain_stages import build", "adapt/job/a.py:1: imports adapt.chain"),
    ("adapt/job/a.py", "from adapt.train.ray_train import launch", "adapt/job/a.py:1: imports adapt.train"),
    ("adapt/chain/a.py", "from adapt.train.ray_train import launch", "adapt/chain/a.py:1: imports adapt.train"),
    (
        "adapt/config/kinds.py",
        "from adapt.method.base import Method",
        "adapt/config/kinds.py:1: imports adapt.method",
    ),
    ("adapt/support/errors.py", "from adapt.config import Config", "adapt/support/errors.py:1: imports adapt.config"),
    ("jobs/dapt.py", "from adapt.corpus.files.manifest import Manifest", "jobs/dapt.py:1: imports adapt.corpus"),
    (
        "adapt/config/corpus.py",
        "try:\n    import torch.nn\nfinally: ...",
        "adapt/config/corpus.py:2: imports torch at the top",
    ),
    ("adapt/runner/stage.py", "class A:\n    import scipy", "adapt/runner/stage.py:2: imports scipy at the top"),
    ("adapt/__init__.py", "from adapt.support.errors import AdaptError", "adapt/__init__.py -> nothing"),
    ("adapt/novelty/a.py", "", "adapt.novelty has no place among the layers"),
]


@pytest.mark.parametrize(("path", "source", "message"), CAUGHT)
def test_the_checker_catches(path, source, message):
    (found,) = violations(source, path)
    assert message in found


PASSED = [
    ("adapt/stage/a.py", "from adapt import __version__, corpus, evaluate, method, select, train"),
    ("adapt/train/engine.py", "import deepspeed, torch, ray\nfrom adapt.train import loop\nfrom . import optimizer"),
    ("adapt/runner/stage.py", "def f():\n    import torch\n\nif TYPE_CHECKING:\n    import scipy"),
    ("adapt/corpus/files/read.py", "import ray.data\nfrom adapt.ray.runtime import start"),
    ("adapt/job/a.py", "from adapt.stage.train import Train\nfrom adapt.parse import parse"),
    ("adapt/chain/a.py", "from adapt.job import JOBS\nfrom adapt.show.report.study import Entry"),
    ("jobs/dapt.py", "import adapt\nfrom adapt.cli.main import main\nfrom jobs import shared"),
]


@pytest.mark.parametrize(("path", "source"), PASSED)
def test_the_checker_accepts(path, source):
    assert list(violations(source, path)) == []
