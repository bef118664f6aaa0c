"""Tests that embedders are found by name, and that wrong names and options are reported."""

from dataclasses import fields

import pytest

from adapt.embed.embedder import EMBEDDERS, embedder_of
from adapt.support.errors import ConfigError
from tests.embed.toys import Lengths


@pytest.mark.parametrize("kind", EMBEDDERS)
def test_options_of_each_embedder_have_defaults_and_enter_its_key(kind: str) -> None:
    embedder = embedder_of(kind, {}, 3)
    assert embedder.what()
    assert ("seed" in embedder.what()) == embedder.learns
    assert embedder.learns == hasattr(embedder.options, "sample_documents")
    assert embedder.reads_model == hasattr(embedder.options, "path")


def test_the_batch_size_does_not_enter_the_key() -> None:
    assert embedder_of("transformer", {"texts_at_once": 1}, 0).what() == embedder_of("transformer", {}, 0).what()
    assert embedder_of("transformer", {"layer": 1}, 0).what() != embedder_of("transformer", {}, 0).what()


def test_a_users_own_is_found() -> None:
    assert EMBEDDERS.load("tests.embed.toys:Lengths") is Lengths


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"select\.embedder: there is no 'vampir'") as caught:
        embedder_of("vampir", {}, 0)
    assert "vampire" in caught.value.fix
    with pytest.raises(ConfigError, match=r"vampire\.topics is 0") as caught:
        embedder_of("vampire", {"topics": 0}, 0)
    assert caught.value.fix == "choose a value in that range"
    with pytest.raises(ConfigError, match=r"unknown key topic in vampire") as caught:
        embedder_of("vampire", {"topic": 3}, 0)
    assert "topics" in caught.value.fix


def test_the_field_to_lower_if_memory_runs_out_is_an_option_of_the_embedder() -> None:
    for kind in ("static", "transformer"):
        section, _, option = (embedder_of(kind, {}, 0).batch_field or "").partition(".")
        assert section == kind
        assert option in {field.name for field in fields(embedder_of(kind, {}, 0).options)}
    assert embedder_of("tfidf", {}, 0).batch_field is None
