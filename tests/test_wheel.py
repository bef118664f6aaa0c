"""The wheel, installed elsewhere, has the command, the library, the recipes and the search spaces, and nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import adapt
from adapt.support.paths import recipes, spaces
from tests.samples import sentences, write

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "adapt",
    "jobs",
    "tune_spaces",
    "dontstop.py",
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "cluster",
    "README.md",
    "LICENSE",
)


def ran(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from a copy of the sources, because building creates folders next to them."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / "source").mkdir(exist_ok=True)
            shutil.copy(source, folder / "source" / name)
    options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--quiet"]
    ran([sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(folder / "source")], folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """Returns a folder with only the installed wheel. The packages that the wheel needs come from this environment."""
    folder = wheel.parent / "site"
    options = ["--no-deps", "--no-cache-dir", "--quiet"]
    ran([sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(wheel)], wheel.parent)
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    top = {name.partition("/")[0] for name in names}
    assert top == {"adapt", "dontstop.py", f"dontstop-{adapt.__version__}.dist-info"}
    assert {Path(name).stem for name in names if name.startswith("adapt/recipes/")} == recipes().keys()
    assert {Path(name).stem for name in names if name.startswith("adapt/spaces/")} == spaces().keys()
    here = {str(file.relative_to(ROOT)) for file in (ROOT / "adapt").rglob("*.*") if "__pycache__" not in file.parts}
    assert here <= set(names)


def test_the_wheel_has_a_bill_of_materials(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if "/sboms/" in name)
        bill = json.loads(content.read(name))
        assert name in content.read(name.partition("/")[0] + "/RECORD").decode()
    assert name == f"dontstop-{adapt.__version__}.dist-info/sboms/dontstop.cdx.json"
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/dontstop@{adapt.__version__}"
    pinned = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    for part in bill["components"]:
        assert part["version"] == pinned.get(part["name"], part["version"])
        (digest,) = part["hashes"]
        assert digest["alg"] == "SHA-256"
        assert re.fullmatch("[0-9a-f]{64}", digest["content"])
    references = [part["bom-ref"] for part in bill["components"]]
    assert len(references) == len({*references})
    (needs,) = bill["dependencies"]
    assert needs["ref"] == bill["metadata"]["component"]["bom-ref"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in project["dependencies"]}
    assert {each.removeprefix("pkg:pypi/").partition("@")[0] for each in needs["dependsOn"]} == needed
    assert {*needs["dependsOn"]} <= {*references}


def test_the_version_is_defined_once(wheel: Path) -> None:
    assert wheel.name.startswith(f"dontstop-{adapt.__version__}-")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    assert newest is None or newest[1] == adapt.__version__


def test_recipes_work_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(installed / "bin" / "dontstop")]
    environment = {"PYTHONPATH": str(installed)}
    assert ran([*command, "--version"], tmp_path, **environment).strip() == adapt.__version__
    assert str(installed) in ran(
        [sys.executable, "-c", "import dontstop; print(dontstop.__file__)"], tmp_path, **environment
    )
    shown = ran([*command, "recipes"], tmp_path, **environment)
    assert all(name in shown for name in [*recipes(), *spaces()])
    assert "corpus:" in ran([*command, "recipes", "demo"], tmp_path, **environment)


@pytest.mark.slow
def test_the_demo_runs_outside_the_repository(installed: Path, tmp_path: Path, tiny_bert: Path) -> None:
    """Runs the demo as users do, except that its model does not come from the package index."""
    corpus = write(tmp_path / "corpus.jsonl", [{"text": text} for text in sentences(300)])
    (tmp_path / "empty").mkdir()
    command = [
        *(sys.executable, str(installed / "bin" / "dontstop"), "demo", "--training.max_steps", "5"),
        *(f"--model.path={tiny_bert}", f"--corpus.paths={corpus}", "--corpus.source=files"),
        "--corpus.packages=[]",
        *("--training.global_batch_size=8", "--training.sequence_length=64", "--evaluation.sequence_length=64"),
        f"--storage.root={tmp_path / 'runs'}",
    ]
    line = ran(command, tmp_path / "empty", PYTHONPATH=str(installed))
    assert '"stage": "dapt"' in line
    assert list((tmp_path / "runs" / "export").glob("*/model.safetensors"))
