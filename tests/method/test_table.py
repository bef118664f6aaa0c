"""Tests the choice of the configured method, and configurations that are refused before anything runs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, MethodConfig, ObjectiveConfig, ResourcesConfig, flat, section_of
from adapt.method.base import Method
from adapt.method.das.method import Das, DasOptions
from adapt.method.table import METHODS, check_method, method_of
from adapt.parse.keys import TABLES, option_sections
from adapt.support.errors import ConfigError

OWN = '''
"""A user's module with methods, some of them wrong."""

from dataclasses import dataclass

from adapt.method.base import Method


@dataclass(frozen=True)
class Options:
    """Options of the method."""

    strength: float = 1.0
    """Strength of the pull."""


class PullBack(Method):
    """A correct method."""

    Options = Options


class Needy(Method):
    """An option has no default."""

    @dataclass(frozen=True)
    class Options:
        """Options without a default."""

        strength: float


class Wild(Method):
    """Its options are not a dataclass."""

    Options = dict


class Training(Method):
    """Has the name of an existing section."""

    Options = Options


def function() -> None:
    """Is not a class."""
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a user's module with methods and makes the module importable."""
    file = tmp_path / "own_method.py"
    file.write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_method", raising=False)
    return file


def named(kind: str, options: Any = None) -> Config:
    return Config(method=MethodConfig(kind), method_options=options)


def test_the_configuration_chooses_the_method() -> None:
    assert type(method_of(Config())) is Method
    das = method_of(named("das"))
    assert isinstance(das, Das)
    assert das.options == DasOptions()
    assert method_of(named("das", DasOptions(soft_mask="none"))).options.soft_mask == "none"
    assert all(METHODS.load(kind).kind == kind for kind in METHODS)


@pytest.mark.parametrize(
    ("kind", "what", "fix"),
    [
        ("l2ps", "there is no 'l2ps'", "did you mean l2sp?"),
        ("zzz", "there is no 'zzz'", "package.module:Class"),
        ("no_such_module:A", "no_such_module cannot be imported", "PYTHONPATH"),
        ("own_method:PullBak", "own_method has no PullBak", "did you mean PullBack?"),
        ("own_method:function", "is not a subclass of Method", "inherit from adapt.method.base.Method"),
        ("own_method:Needy", "no default for strength", "give every option a default"),
        ("own_method:Wild", "Options is not a dataclass", "frozen dataclass"),
    ],
)
def test_objects_that_are_not_methods_are_refused(own: Path, kind: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        METHODS.load(kind)
    assert fix in caught.value.fix


def test_a_module_that_fails_to_import_is_refused(own: Path) -> None:
    own.write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        METHODS.load("own_method:PullBack")


def test_the_key_has_the_source_of_a_users_method(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = method_of(named("own_method:PullBack")).what()
    assert first.pop("source")
    assert first == {"kind": "own_method:PullBack", "strength": 1.0}
    before = method_of(named("own_method:PullBack")).what()
    own.write_text(OWN + "# changed\n")
    assert method_of(named("own_method:PullBack")).what() != before


def test_option_sections_have_the_names_of_their_methods(own: Path) -> None:
    assert [section_of(kind) for kind in ("das", "a.b:PullBack", "a:L2SPPlus", "a:EWC")] == [
        *("das", "pull_back", "l2_sp_plus", "ewc")
    ]
    own = frozenset({("method.kind", "own_method:PullBack")})
    assert {kind for kind in METHODS if METHODS.load(kind).Options} == METHODS.keys() & {*option_sections()}
    assert {*option_sections(own)} - {*option_sections()} == {"pull_back"}
    with pytest.raises(ConfigError, match="section `training`"):
        option_sections(frozenset({("method.kind", "own_method:Training")}))


def test_kinds_with_options_have_unique_names_over_all_tables() -> None:
    names = [name for table in TABLES.values() for name in table if getattr(table.load(name), "Options", None)]
    assert len(names) == len({*names})
    assert not {*names} & {*Config.__dataclass_fields__}


def test_messages_and_trackers_see_only_the_chosen_methods_options() -> None:
    assert flat(named("das", DasOptions(soft_mask="none")))["das.soft_mask"] == "none"
    assert not [name for name in flat(Config()) if name.startswith(("das", "method_options"))]


def test_unsupported_zero_stages_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Method, "zero_stages", (0, 1))
    config = replace(Config(), resources=ResourcesConfig(zero_stage=2))
    with pytest.raises(ConfigError, match=r"method.kind plain does not run at resources.zero_stage 2") as caught:
        check_method(config, tmp_path)
    assert caught.value.fix == "choose one of 0, 1"
    check_method(replace(config, resources=ResourcesConfig(zero_stage=1)), tmp_path)


@pytest.mark.parametrize("kind", ["distill", "derpp", "prompt"])
def test_a_bidirectional_decoder_of_an_unknown_type_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Masked next-token prediction trains decoders, so the model is not checked for being an encoder."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt_neox", "max_position_embeddings": 1024}')
    asked: list[bool | None] = []

    def tried(_: Path, causal: bool | None, *args: Any, **options: Any) -> str:
        asked.append(causal)
        return "packed"

    for module in ("adapt.method.table", "adapt.method.domain_parameters"):
        monkeypatch.setattr(f"{module}.try_unknown", tried)
    for objective in ("mntp", "causal", "mlm"):
        check_method(replace(named(kind), objective=ObjectiveConfig(kind=objective)), tmp_path)
    assert asked == [None, True, False]


def test_choosing_a_method_does_not_load_torch() -> None:
    """Checks in a new process that choosing a method and parsing its options import no heavy library."""
    program = (
        "import sys\n"
        "from adapt.parse import parse\n"
        "from adapt.method.table import METHODS, method_of\n"
        "for kind in METHODS:\n"
        "    method_of(parse(['--corpus.paths', 'a', '--method.kind', kind], 'x')).what()\n"
        "heavy = {'torch', 'transformers', 'ray', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'loads {heavy}' if heavy else 0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
