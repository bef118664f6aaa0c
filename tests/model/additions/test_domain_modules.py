"""Tests the choice of a domain's parameter sets, and the assignment of texts to the nearest domain."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.model.additions.domain_modules import (
    attach_adapters,
    attach_domains,
    choose_domain,
    choose_set,
    domain_vectors,
    domains_of,
    nearest_domains,
    own_parameters,
    prototype_of,
    sets_of,
)
from adapt.model.additions.table import check_parts, with_addition
from adapt.model.load import load_model, save_model
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError
from tests.model.families import ready

TEXTS = [np.arange(5, 12), np.array([20, 21, 20]), np.arange(5, 9), np.array([21, 20, 22, 20])]


def two_domains() -> Any:
    """Returns a model with different adapters for two domains."""
    model = ready("bert")
    attach_adapters(model, 2, 3, "sequential", "both", 1.0)
    attach_domains(model, ["cs", "bio"])
    for number in (0, 1):
        draw = torch.Generator().manual_seed(number)
        for parameter in own_parameters(model, number):
            parameter.data = torch.randn(parameter.shape, generator=draw)
    return model


def test_the_vector_of_a_text_does_not_depend_on_the_set_in_use() -> None:
    model, plain = two_domains(), ready("bert")
    found = domain_vectors(model, TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        states = plain.base_model(torch.from_numpy(text)[None]).last_hidden_state[0]
        np.testing.assert_allclose(vector, states.mean(0).detach(), rtol=1e-4, atol=1e-5)
    assert [sets.chosen for sets in sets_of(model)] == [1, 1, 1, 1]  # the parameter set in use is unchanged


def test_a_text_goes_to_the_nearest_prototype() -> None:
    model = two_domains()
    known = domains_of(model)
    assert known is not None
    assert known.learn("cs", prototype_of(model, TEXTS[:1])) == 0
    assert known.learn("bio", prototype_of(model, TEXTS[1:2])) == 1
    vectors = domain_vectors(model, TEXTS)
    expected = [int(np.linalg.norm(vector - vectors[0]) > np.linalg.norm(vector - vectors[1])) for vector in vectors]
    assert nearest_domains(model, vectors).tolist() == expected == [0, 1, 0, 1]
    assert known.learn("law", torch.from_numpy(vectors[3])) == 2
    assert nearest_domains(model, vectors)[3] == 2
    torch.testing.assert_close(prototype_of(model, TEXTS), torch.from_numpy(vectors.mean(0)))
    assert not prototype_of(model, []).any()


def test_a_domain_is_chosen_by_its_name() -> None:
    model = two_domains()
    choose_domain(model, "cs")
    assert {sets.chosen for sets in sets_of(model)} == {0}
    choose_set(model, None)
    assert all(sets.used is None for sets in sets_of(model))
    with pytest.raises(ModelError, match=r"no parts for the domain 'boi'\n.*did you mean bio"):
        choose_domain(model, "boi")
    with pytest.raises(ModelError, match="no parts for the domain 'cs'"):
        choose_domain(ready("bert"), "cs")


def test_a_loaded_model_uses_the_sets_of_the_requested_domain(bert: Path, tmp_path: Path) -> None:
    model = load_model(bert)
    attach_adapters(model, 2, 3, "sequential", "both", 1.0)
    attach_domains(model, ["cs", "bio"])
    for number in (0, 1):
        for parameter in own_parameters(model, number):
            torch.nn.init.constant_(parameter, 0.1 * (number + 1))
    known = domains_of(model)
    assert known is not None
    known.learn("bio", torch.ones(8))

    def enter(config: Any) -> None:
        options = {"width": 3, "form": "sequential", "placement": "both", "scale": 1.0}
        with_addition(config, "adapters", sets=2, **options)
        with_addition(config, "domains", names=["cs", "bio"])

    save_model(bert, model.state_dict(), load_tokenizer(bert), tmp_path / "out", resize=enter)
    ids = torch.tensor([[2, 31, 32, 4, 3]])
    for name, number in (("cs", 0), ("bio", 1), (None, 1)):
        choose_set(model, number)
        loaded = load_model(tmp_path / "out", domain=name)
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    again = domains_of(loaded)
    assert again is not None
    assert again.names == ["cs", "bio"]
    assert torch.equal(again.vectors, known.vectors)
    with pytest.raises(ModelError, match="no parts for the domain 'law'"):
        load_model(tmp_path / "out", domain="law")
    check_parts(tmp_path / "out", "bio")
    with pytest.raises(ModelError, match="choose one of cs, bio"):
        check_parts(tmp_path / "out", "law")
    with pytest.raises(ModelError, match="has no domain-specific parts"):
        check_parts(bert, "law")
