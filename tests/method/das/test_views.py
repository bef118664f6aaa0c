"""Tests importance for general knowledge: gradients of the divergence between two dropout views of a text."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy, spearmanr

from adapt.method.das.contrast import Disagreement, has_dropout, injected
from adapt.method.das.criteria import MeasureSettings, Sums, gate_sizes
from adapt.model.layers import KINDS, Gates, layers_of
from adapt.model.states import last_hidden_state
from adapt.objective.objective import Batch
from adapt.support.errors import ModelError
from tests.method.das.test_criteria import batch
from tests.model.families import FAMILIES, ready

WITHOUT = ("llama", "modernbert")


def differing(model: Any) -> AbstractContextManager[None]:
    """Returns a context manager in which two passes in training mode differ. Models without dropout get dropout."""
    views = injected(model, 0.1)
    return views.on() if views else nullcontext()


def measured(model: Any, batches: list[Batch], seed: int | None = 0) -> Sums:
    return gate_sizes(model, Gates(model), Disagreement(), enumerate(batches), MeasureSettings(dropout_seed=seed))


def test_the_loss_is_the_mean_divergence_of_both_directions() -> None:
    model, seen = ready("bert").train(), Disagreement().corrupt(batch())
    torch.manual_seed(0)
    found = Disagreement().loss(model, seen)
    torch.manual_seed(0)
    with torch.no_grad():
        first, second = (softmax(last_hidden_state(model, seen.packed()).numpy(), axis=1) for _ in range(2))
    assert abs(first - second).max() > 0.01
    expected = (entropy(first, second, axis=1) + entropy(second, first, axis=1)).sum() / 2
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_every_text_token_is_compared_and_none_is_masked() -> None:
    rows = batch()
    seen = Disagreement().corrupt(rows)
    assert torch.equal(seen.input_ids, rows.tokens)
    assert torch.equal(seen.positions, rows.real)
    sums = measured(ready("bert"), [rows])
    filled = replace(rows, tokens=torch.where(rows.real, rows.tokens, 7))
    assert all(torch.equal(sums.units[kind], measured(ready("bert"), [filled]).units[kind]) for kind in KINDS)


@pytest.mark.parametrize("family", FAMILIES)
def test_importance_is_positive_with_dropout_and_0_without(family: str) -> None:
    model = ready(family)
    with differing(model):
        training, evaluation = measured(model, [batch()]), measured(model, [batch()], seed=None)
    for kind in KINDS:
        assert (training.units[kind] > 0).all()
        assert not evaluation.units[kind].any()


@pytest.mark.parametrize(("family", "more"), [("bert", {}), ("llama", {"num_key_value_heads": 8, "head_dim": 2})])
def test_the_order_of_units_is_stable_over_seeds(family: str, more: dict[str, int]) -> None:
    """Checks that the ranks of units correlate between two dropout seeds.

    Random units are almost equally important. Therefore, the test makes the outputs of later units larger. It measures
    each row separately, so that 96 rows give 96 gradients.
    """
    model = ready(family, num_attention_heads=8, **more)
    for layer in layers_of(model):
        heads, outer = (layer.part(name).weight.data for name in (layer.pattern.attention_out, layer.pattern.outer))
        heads *= growing(8).repeat_interleave(heads.shape[1] // 8)
        outer *= growing(outer.shape[1])  # inner neurons
        outer *= growing(outer.shape[0])[:, None]  # output neurons
    batches = list(enumerate(batch(number, rows=32) for number in range(3)))
    with differing(model):
        first, second = (
            gate_sizes(
                model, Gates(model), Disagreement(), batches, MeasureSettings(granularity="example", dropout_seed=seed)
            ).units
            for seed in (0, 1)
        )
    for kind in KINDS:
        for one, other in zip(first[kind], second[kind], strict=True):
            assert not torch.equal(one, other)
            assert spearmanr(one, other).statistic > 0.7, kind


def growing(units: int) -> torch.Tensor:
    """Returns factors from 1/4 to 2, one per unit, each larger than the previous one by the same ratio."""
    return torch.logspace(-2, 1, units, base=2)


def test_dropout_depends_on_seed_and_batch_number() -> None:
    model, batches = ready("bert"), [batch(0), batch(1)]
    gates, settings = Gates(model), MeasureSettings(dropout_seed=5)
    numbered = list(enumerate(batches))
    torch.manual_seed(1)
    whole = gate_sizes(model, gates, Disagreement(), numbered, settings)
    torch.manual_seed(2)
    parts = [gate_sizes(model, gates, Disagreement(), [each], settings) for each in numbered[::-1]]
    total = parts[0] + parts[1]
    for kind in KINDS:
        torch.testing.assert_close(total.units[kind], whole.units[kind], rtol=1e-9, atol=0)
    same = gate_sizes(model, gates, Disagreement(), [(0, batches[0]), (1, batches[0])], settings)
    # the same batch with another number gets different dropout
    assert not torch.equal(same.means["inner"], parts[1].means["inner"])


@pytest.mark.parametrize("family", FAMILIES)
def test_injected_dropout_is_on_only_inside_the_block(family: str) -> None:
    model = ready(family)
    assert has_dropout(model) == (family not in WITHOUT)
    packed = Disagreement().corrupt(batch()).packed()

    def differ(training: bool) -> bool:
        model.train(training)
        with torch.no_grad():
            return not torch.equal(*(last_hidden_state(model, packed) for _ in range(2)))

    assert differ(training=True) == (family not in WITHOUT)
    with differing(model):
        assert differ(training=True)
        assert not differ(training=False)
    assert differ(training=True) == (family not in WITHOUT)


def test_attention_dropout_alone_is_dropout() -> None:
    model = ready("llama")
    model.config.attention_dropout = 0.1
    assert has_dropout(model)


@pytest.mark.parametrize("family", WITHOUT)
def test_only_the_chosen_tokens_drop_out(family: str) -> None:
    model, packed = ready(family).train(), Disagreement().corrupt(batch()).packed()
    views = injected(model, 0.5)
    assert views
    with torch.no_grad():
        plain = last_hidden_state(model, packed)
        later = torch.arange(packed.tokens) >= int(packed.documents.cumulative[2])
        with views.on(later):
            found = last_hidden_state(model, packed)
    assert torch.equal(found[~later], plain[~later])
    assert (found[later] != plain[later]).any(1).all()


def test_a_model_without_any_dropout_is_refused() -> None:
    with pytest.raises(ModelError, match="LlamaForCausalLM has no dropout") as caught:
        injected(ready("llama"), 0.0)
    assert "das.injected_dropout" in caught.value.fix
    assert injected(ready("bert"), 0.0) is None  # no dropout is injected into BERT, which has its own


def test_tokens_of_both_views_have_gradients() -> None:
    model, rows = ready("bert"), batch()
    settings = MeasureSettings(dropout_seed=0, embeddings="gradient", rows=2)
    tokens = gate_sizes(model, Gates(model), Disagreement(), [(0, rows)], settings).tokens
    assert tokens is not None
    assert set(tokens.nonzero().flatten().tolist()) == set(rows.tokens[rows.real].tolist())
