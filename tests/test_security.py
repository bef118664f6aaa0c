"""Tests that fields that name code only accept code of the expected class, and that the security guide lists them."""

import ast
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from adapt.corpus.cleaning.cleaning_blocks import blocks_of
from adapt.corpus.entities import TAGGERS
from adapt.embed.embedder import EMBEDDERS
from adapt.handover.table import EXPORT_KINDS
from adapt.job import job_of
from adapt.method.table import METHODS
from adapt.objective.table import OBJECTIVES
from adapt.parse import parse
from adapt.select.table import SELECTIONS
from adapt.support.errors import ConfigError

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guide" / "security.md").read_text()
NAMED_BY: dict[str, Callable[[str], object]] = {
    "method.kind": METHODS.load,
    "select.kind": SELECTIONS.load,
    "select.embedder": EMBEDDERS.load,
    "objective.kind": OBJECTIVES.load,
    "objective.tagger": TAGGERS.load,
    "export.kinds": EXPORT_KINDS.load,
    "corpus.cleaning": lambda name: blocks_of([name]),
    "job": job_of,
}
"""For each field that names code, the function that reads the field."""


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:Popen", "unittest.mock:call", "builtins:eval", "shutil:rmtree"]
)
@pytest.mark.parametrize("field", NAMED_BY)
def test_code_of_another_kind_is_refused(field: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(field)}: {name} is not a\w* (instance|subclass) of "):
        NAMED_BY[field](name)


def test_the_page_names_every_field_that_names_code() -> None:
    found = set()
    for file in (ROOT / "adapt").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="imported"), args=[ast.Constant(value=str(field)), *_]):
                    found.add(field)
                case ast.Call(
                    func=ast.Name(id="Kinds"), args=[ast.Constant(value=str(field)), *_], keywords=keywords
                ) if any(keyword.arg == "base" for keyword in keywords):
                    found.add(field)
    assert found == set(NAMED_BY)
    assert all(f"`{field}`" in PAGE for field in [*NAMED_BY, "tune.space", "model.trust_remote_code: true"])
    for base in re.findall(r"`(adapt\.[\w.]+)`", PAGE):
        module, _, name = base.rpartition(".")
        assert re.search(rf"^class {name}\b", (ROOT / module.replace(".", "/")).with_suffix(".py").read_text(), re.M)


@pytest.mark.parametrize("value", ["!!python/object/apply:os.system [touch ran]", "!!python/name:os.system ''"])
def test_yaml_creates_no_objects(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text(f"corpus:\n  paths: {value}\n")
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        parse(["--config", str(file)], "jobs/dapt.py")
    for field in ("corpus.paths", "corpus.cleaning", "select.kind"):
        with suppress(ConfigError):  # Some values are not names of code and are read as text.
            parse([f"--{field}={value}"], "jobs/dapt.py")
    assert not Path("ran").exists()
