"""Tests of selections that are found by name, and of a user's own selection."""

import sys
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, SelectConfig
from adapt.select.choose import highest
from adapt.select.selection import Random
from adapt.select.table import SELECTIONS, selection_of, selections_name, steps_of
from adapt.support.errors import ConfigError
from tests.select.pools import numbered

OWN = """
from dataclasses import dataclass
from adapt.select.selection import Selection

@dataclass(frozen=True)
class Options:
    word: str = "of"
    times: int = 1

class Holds(Selection):
    Options = Options

    def scores(self, pool, target):
        return (float(self.options.times * text.split().count(self.options.word)) for text in pool)

class Silent(Selection):
    pass

class Stranger:
    def scores(self, pool, target):
        return iter(())
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_selections.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_selections", raising=False)


def configured(kind: Any, **options: dict[str, Any]) -> Config:
    return Config(seed=5, select=SelectConfig(kind=kind), select_options=options)


@pytest.mark.parametrize("kind", SELECTIONS)
def test_every_selection_of_the_table_can_be_made_with_its_defaults(kind: str) -> None:
    selection = selection_of(kind, {}, 3)
    assert selection.seed == 3
    assert selection.options == selection.Options()


def test_selections_of_a_list_follow_each_other_with_their_options() -> None:
    steps = steps_of(configured([{"dsir": {"ngram": 1}}, "my_selections:Holds", {"random": None}]))
    assert [step.kind for step in steps] == ["dsir", "my_selections:Holds", "random"]
    assert steps[0].selection.options.ngram == 1
    assert selections_name(steps) == "dsir-Holds-random"
    assert "source" in steps[1].what()


def test_options_are_those_of_the_section_unless_the_list_has_them() -> None:
    (one,) = steps_of(configured("dsir", dsir={"ngram": 3}))
    assert (one.kind, one.selection.options.ngram) == ("dsir", 3)
    kinds = [{"dsir": {"ngram": 1}}, "dsir", "my_selections:Holds"]
    listed = configured(kinds, dsir={"ngram": 3, "smoothing": 0.5}, holds={"times": 4})
    steps = [step.selection.options for step in steps_of(listed)]
    assert [(options.ngram, options.smoothing) for options in steps[:2]] == [(1, 0.5), (3, 0.5)]
    assert steps[2].times == 4


@pytest.mark.parametrize(
    ("kind", "what", "fix"),
    [
        ([], "select.kind is an empty list", "name one or more of random, dsir"),
        (["dsri"], "there is no 'dsri'", "did you mean dsir?"),
        (["dsir", 3], "select.kind: cannot read 3", "name: {option: value}"),
        ([{"dsir": 3}], "select.kind: cannot read {'dsir': 3}", "name: {option: value}"),
        ([{"dsir": {"ngramm": 1}}], "unknown key ngramm in dsir", "mean ngram?"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(kind: Any, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        steps_of(configured(kind))
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_the_name_is_that_of_its_class() -> None:
    assert isinstance(selection_of("random", {}, 3), Random)
    assert selection_of("random", {}, 3).seed == 3


def test_a_users_own_is_taken_with_its_options() -> None:
    pool = numbered(["one of", "none", "of all of them"])
    assert highest(selection_of("my_selections:Holds", {}, 0), pool, [], 1) == [(2, "of all of them", 2.0)]
    other = selection_of("my_selections:Holds", {"word": "none", "times": 3}, 0)
    assert highest(other, pool, [], 1) == [(1, "none", 3.0)]


@pytest.mark.parametrize(
    ("kind", "options", "what", "fix"),
    [
        ("rnadom", {}, "select.kind: there is no 'rnadom'", "did you mean random?"),
        (
            "zzz",
            {},
            "select.kind: there is no 'zzz'",
            "use classifier, dsir, knn, perplexity, random, semdedup, tsds, or package.module:Class",
        ),
        ("random", {"seed": 1}, "unknown key seed in random", "remove it: random has no options"),
        ("my_selections:Holds", {"wrod": "a"}, "unknown key wrod in my_selections:Holds", "did you mean word?"),
        ("my_selections:Holds", {"times": "often"}, "my_selections:Holds.times takes int, not often", "correct"),
        ("my_selections:Silent", {}, "my_selections:Silent lacks scores", "docs/develop/extending.md"),
        ("my_selections:Stranger", {}, "Stranger is not a subclass of Selection", "adapt.select.selection.Selection"),
        ("my_selections:Hold", {}, "my_selections has no Hold", "did you mean Holds?"),
        ("my_selectons:Holds", {}, "my_selectons cannot be imported", "PYTHONPATH"),
    ],
)
def test_unknown_selections_and_options_are_refused(kind: str, options: dict[str, object], what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        selection_of(kind, options, 0)
    assert what in caught.value.what
    assert fix in caught.value.fix
