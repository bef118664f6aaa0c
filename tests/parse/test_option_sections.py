"""Tests that the options of a method, selection or embedder are read from the section with its name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from adapt.config import flat
from adapt.job import JOBS
from adapt.method.das.method import DasOptions
from adapt.method.sequence_modes import ReplayOptions
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
    later = write("method: {kind: das}\n", "later.yaml")  # the option has priority, although the file comes later
    assert parsed(*given, "--pull_back.strength=2", "--config", later).method_options.strength == 2.0
    assert "did you mean pull_back.strength?" in refused(*given, "--pull_back.strenght=1").fix
    with pytest.raises(SystemExit):
        parsed(*given, "--help")
    assert "How strong." in capsys.readouterr().out
    assert "unknown key" in refused(PATHS, "--pull_back.strength=1").what


SELECTS = ["--select.pool_paths=a", "--select.kind=dsir"]


def test_selections_and_embedders_have_sections_too(write: Callable[..., str]) -> None:
    file = write("select: {kind: dsir, embedder: static, pool_paths: a}\ndsir: {ngram: 3}\nstatic: {smoothing: 0.5}\n")
    options = parsed(PATHS, "--config", file, "--dsir.ngram=1").select_options
    assert (options["dsir"]["ngram"], options["static"]["smoothing"]) == (1, 0.5)
    assert options.keys() == {"dsir", "static"}
    listed = {"select": {"kind": [{"dsir": {"ngram": 1}}, "classifier"], "pool_paths": "a"}, "dsir.smoothing": "0.5"}
    options = parse_values(listed, JOBS["select"].kind, "here").select_options
    assert (options["dsir"]["ngram"], options["dsir"]["smoothing"]) == (2, 0.5)
    assert flat(parsed(PATHS, *SELECTS, "--dsir.ngram=1"))["dsir.ngram"] == 1


def test_sections_of_unused_selections_are_checked_and_ignored() -> None:
    assert parsed(PATHS, "--dsir.ngram=1", "--select.kind=dsir").select_options == {}
    assert {*parsed(PATHS, *SELECTS, "--classifier.ngram=1").select_options} == {"dsir", "tfidf"}
    assert "classifier.ngram is 0" in refused(PATHS, "--classifier.ngram=0").what
    assert "did you mean dsir.ngram?" in refused(PATHS, "--dsir.ngramm=1").fix
    assert refused(PATHS, "--select.kind=dsri").fix == "did you mean dsir?"
    assert refused(PATHS, "--select.kind=[dsri]").fix == "did you mean dsir?"
    assert refused(PATHS, "--select.embedder=statics").fix == "did you mean static?"


def test_old_option_fields_are_refused_with_a_pointer_to_the_section(write: Callable[..., str]) -> None:
    for given in ("select.options: {ngram: 2}", "select: {options: {ngram: 2}}"):
        error = refused(PATHS, "--config", write(f"{given}\n"))
        assert error.what.startswith("unknown key select.options in")
        assert error.fix.startswith("write `dsir: {ngram: 2}`, or --dsir.ngram 2")
    assert "write `static: {path: …}`" in refused(PATHS, "--select.embedder_options={path: a}").fix


def test_a_users_own_selection_has_a_section(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        OWN.replace("adapt.method.base import Method", "adapt.select.selection import Random").replace(
            "(Method)", "(Random)"
        ),
        "my_choices.py",
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = [PATHS, "--select.pool_paths=a", "--pull_back.strength=2"]
    for kind in ("my_choices:PullBack", "[dsir, my_choices:PullBack]", "[dsir, {my_choices:PullBack: {}}]"):
        assert parsed(*given, f"--select.kind={kind}").select_options["pull_back"] == {"strength": 2.0}
    assert "unknown key" in refused(*given, "--select.kind=dsir").what


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
