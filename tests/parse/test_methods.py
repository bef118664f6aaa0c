"""The options of methods are sections of the configuration, also those of a user's own method."""

from collections.abc import Callable
from pathlib import Path

import pytest

from adapt.config import flat
from adapt.job.registry import JOBS
from adapt.method.das.method import DasOptions
from adapt.method.replay import ReplayOptions
from adapt.parse import parse, parse_values
from tests.parse.calls import DOMAINS, PATHS, parsed, refused


def test_the_section_of_the_chosen_method_is_its_options(write: Callable[..., str]) -> None:
    file = write("method: {kind: das}\ndas: {soft_mask: gradient}\n")
    assert parsed(PATHS, "--config", file).method_options == DasOptions(soft_mask="gradient")
    assert parsed(PATHS, "--config", file, "--das.soft_mask=none").method_options == DasOptions(soft_mask="none")
    assert parse([DOMAINS], "x", JOBS["sequence"].kind).method_options == ReplayOptions(fraction=0.25)
    assert parse([DOMAINS, "--method.kind=das"], "x", JOBS["sequence"].kind).method_options == DasOptions()
    given = {"method.kind": "das", "das": {"soft_mask": "none"}, "corpus.paths": "a"}
    assert parse_values(given, JOBS["dapt"].kind, "here").method_options == DasOptions(soft_mask="none")


def test_sections_of_other_methods_are_checked_and_ignored() -> None:
    assert parsed(PATHS, "--das.soft_mask=gradient").method_options is None
    assert "das.importance_batch is 0" in refused(PATHS, "--das.importance_batch=0").what
    assert "did you mean das.soft_mask?" in refused(PATHS, "--das.soft_mosk=none").fix
    assert "l2sp.alpha is -1" in refused(PATHS, "--method.kind=das", "--l2sp.alpha=-1").what
    assert refused(PATHS, "--method_options=1").what.startswith("unknown key")
    assert refused(PATHS, "--method.kind=dos").fix == "did you mean das?"


def test_a_users_own_method_has_a_section(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(OWN, "my_methods.py")
    monkeypatch.syspath_prepend(tmp_path)
    file = write("method: {kind: 'my_methods:PullBack'}\npull_back: {strength: 3}\n")
    found = parsed(PATHS, "--config", file)
    assert found.method_options.strength == 3.0
    assert flat(found)["pull_back.strength"] == 3.0
    given = [PATHS, "--method.kind=my_methods:PullBack"]
    assert "pull_back.strength is -1" in refused(*given, "--pull_back.strength=-1").what
    assert "did you mean pull_back.strength?" in refused(*given, "--pull_back.strenght=1").fix
    with pytest.raises(SystemExit):
        parsed(*given, "--help")
    assert "How strong." in capsys.readouterr().out
    assert "unknown key" in refused(PATHS, "--pull_back.strength=1").what


OWN = '''
from __future__ import annotations

from dataclasses import dataclass

from adapt.config import NonNegativeFloat
from adapt.method.base import Method


@dataclass(frozen=True)
class PullBackOptions:
    """Mine."""

    strength: NonNegativeFloat = 1.0
    """How strong."""


class PullBack(Method):
    """Mine."""

    Options = PullBackOptions
'''
