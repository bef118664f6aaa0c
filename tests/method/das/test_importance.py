"""Tests importance: the file that stores it, its normalization, and the soft masks made from it."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from scipy.stats import percentileofscore, zscore
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, BertConfig

from adapt.method.base import Setting
from adapt.method.das.importance import (
    IMPORTANCE_FILE,
    Importance,
    accumulate,
    joined_importance,
    load_importance,
    normalize,
    normalize_tokens,
    plasticity,
    random_sizes,
    save_importance,
    with_floor,
)
from adapt.model.layers import KINDS, Kind, Values, by_parameter, ones
from adapt.model.masked_updates import Mask, Target, in_use
from adapt.model.sparse_prediction import loss_at
from adapt.support.errors import ModelError, StageError
from tests.method.das.soft_mask import SoftMask
from tests.model.families import BERT, FAMILIES, VOCABULARY, ready
from tests.model.test_layers import PACKED, TOKENS, states


def an_importance(family: str, embedding: bool = False) -> Importance:
    model = ready(family)
    draw = torch.Generator().manual_seed(0)
    units = {kind: torch.rand(each.shape, generator=draw) for kind, each in ones(model).items()}
    tokens = torch.rand(len(model.get_input_embeddings().weight), generator=draw) if embedding else None
    return Importance(units, tokens, torch.tensor([3, 2**40, 5]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("embedding", [False, True])
def test_a_saved_importance_can_be_loaded(tmp_path: Path, family: str, embedding: bool) -> None:
    given = an_importance(family, embedding)
    save_importance(given, ready(family), tmp_path)
    found = load_importance(tmp_path, ready(family))
    assert found.units.keys() == given.units.keys()
    assert all(torch.equal(found.units[kind], given.units[kind]) for kind in given.units)
    assert torch.equal(found.sample, given.sample)
    assert (found.embedding is None) == (given.embedding is None)
    assert given.embedding is None or (found.embedding is not None and torch.equal(found.embedding, given.embedding))


def test_names_and_types_of_the_file(tmp_path: Path) -> None:
    save_importance(an_importance("bert", embedding=True), ready("bert"), tmp_path)
    with safe_open(tmp_path / IMPORTANCE_FILE, framework="pt") as file:
        types = {name: str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118
        assert file.metadata()["model_type"] == "bert"
    assert types == {
        **dict.fromkeys(("head", "inner", "output", "embedding"), "torch.float32"),
        "sample": "torch.int64",
    }


def test_saving_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    (tmp_path / IMPORTANCE_FILE).write_text("half a file of a run that died")
    save_importance(an_importance("bert"), ready("bert"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [IMPORTANCE_FILE]
    assert load_importance(tmp_path, ready("bert"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_hidden_layers": 3}, "layers is 2 there and 3 in this model"),
        ({"num_attention_heads": 4}, "head is 2 there and 4 in this model"),
        ({"intermediate_size": 48}, "inner is 32 there and 48 in this model"),
    ],
)
def test_importance_of_another_depth_or_width_is_refused(tmp_path: Path, changes: dict[str, int], named: str) -> None:
    save_importance(an_importance("bert"), ready("bert"), tmp_path)
    other = AutoModelForMaskedLM.from_config(BertConfig(**{**BERT, **changes}, vocab_size=50))
    with pytest.raises(ModelError, match=named) as caught:
        load_importance(tmp_path, other)
    assert "measure importance again" in caught.value.fix


def test_importance_of_another_architecture_is_refused(tmp_path: Path) -> None:
    save_importance(an_importance("bert"), ready("bert"), tmp_path)
    with pytest.raises(ModelError, match="model_type is bert there and roberta in this model"):
        load_importance(tmp_path, ready("roberta"))


def test_another_vocabulary_is_refused_only_with_token_masks(tmp_path: Path) -> None:
    other = AutoModelForMaskedLM.from_config(BertConfig(**BERT, vocab_size=60))
    save_importance(an_importance("bert"), ready("bert"), tmp_path)
    load_importance(tmp_path, other)
    save_importance(an_importance("bert", embedding=True), ready("bert"), tmp_path)
    with pytest.raises(ModelError, match="vocabulary is 50 there and 60 in this model"):
        load_importance(tmp_path, other)


@pytest.mark.parametrize("content", [None, b"", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / IMPORTANCE_FILE).write_bytes(content)
    with pytest.raises(StageError, match=r"importance\.safetensors cannot be read") as caught:
        load_importance(tmp_path, ready("bert"))
    assert str(tmp_path) in caught.value.fix


def test_token_importances_are_merged_where_known() -> None:
    first, second = torch.tensor([0.1, 0.9]), torch.tensor([0.5, 0.2])
    assert joined_importance(None, None) is None
    assert joined_importance(first, None) is first
    assert joined_importance(None, first) is first
    found = joined_importance(first, second)
    assert found is not None
    assert torch.equal(found, torch.tensor([0.5, 0.9]))


UNITS = {"head": 4, "inner": 37, "output": 16}
HOWS: Any = ["paper", "positive", "rank"]


def sizes(seed: int = 0, scale: float = 1.0) -> dict[Kind, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {kind: scale * torch.rand(3, UNITS[kind], generator=draw).square() for kind in KINDS}


def every(values: Values) -> Tensor:
    return torch.cat([each.flatten() for each in values.values()])


@pytest.mark.parametrize(("how", "of"), [("paper", np.abs), ("positive", lambda each: np.maximum(each, 0))])
def test_normalization_by_deviations_from_the_mean(how: Any, of: Any) -> None:
    given, found = sizes(), normalize(sizes(), how)
    for kind in KINDS:
        expected = of(np.tanh(zscore(given[kind].double().numpy(), axis=1)))
        np.testing.assert_allclose(found[kind].numpy(), expected, rtol=1e-5, atol=1e-7)


def test_normalization_by_rank() -> None:
    tied = {kind: (each * 8).round() for kind, each in sizes().items()}
    found = normalize(tied, "rank")
    for kind in KINDS:
        for layer, row in zip(found[kind], tied[kind].numpy(), strict=True):
            # equal values get their mean rank, counted from 0
            ranks = [percentileofscore(row, each, "mean") / 100 * len(row) - 0.5 for each in row]
            np.testing.assert_allclose(layer.numpy(), np.array(ranks) / (len(row) - 1), atol=1e-6)


@pytest.mark.parametrize("how", HOWS)
@given(st.integers(0, 1000), st.floats(1e-12, 1e12))
def test_importance_is_in_0_to_1_and_does_not_depend_on_scale(how: Any, seed: int, scale: float) -> None:
    found = normalize(sizes(seed, scale), how)
    assert every(found).min() >= 0
    assert every(found).max() <= 1
    torch.testing.assert_close(found, normalize(sizes(seed), how), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.1, 1e6])
def test_equal_units_have_no_importance(value: float) -> None:
    """Checks that equal units have importance 0, even if they differ by rounding errors.

    Normalization `rank` gives all of them importance 0.5.
    """
    equal = {kind: torch.full((3, UNITS[kind]), value) for kind in KINDS}
    noisy = {kind: each * (1 + 1e-7 * torch.randn(each.shape)) for kind, each in equal.items()}
    for how in ("paper", "positive"):
        assert not every(normalize(equal, how)).any()
        assert not every(normalize(noisy, how)).any()
    assert torch.equal(every(normalize(equal, "rank")), torch.full((171,), 0.5))


def test_the_only_unit_of_a_layer_has_no_importance() -> None:
    single = {kind: torch.ones(2, 1) for kind in KINDS}
    for how in HOWS:
        assert not every(normalize(single, how)).any()


def test_the_published_formula_protects_units_far_below_the_mean() -> None:
    """Checks a unit far below the mean. Normalization `paper` makes it important. `positive` and `rank` give it 0."""
    given = {kind: torch.tensor([[0.0, *[10.0 + each / 10 for each in range(9)]]]) for kind in KINDS}
    lowest = {how: normalize(given, how)["inner"][0, 0].item() for how in HOWS}
    assert lowest["paper"] > 0.95
    assert lowest["positive"] == lowest["rank"] == 0


def test_tokens_are_normalized_by_the_mean_of_those_that_occur() -> None:
    counts = torch.tensor([0.0, 1.0, 5.0, 0.0, 3.0])
    np.testing.assert_allclose(normalize_tokens(counts), np.tanh(counts.numpy() / 3), rtol=1e-6)
    assert not normalize_tokens(torch.zeros(4)).any()


def test_random_sizes_depend_on_the_seed() -> None:
    model = ready("bert")
    assert torch.equal(every(random_sizes(model, 3)), every(random_sizes(model, 3)))
    assert not torch.equal(every(random_sizes(model, 3)), every(random_sizes(model, 4)))
    assert {kind: tuple(each.shape) for kind, each in random_sizes(model, -1).items()} == {
        "head": (2, 2),
        "inner": (2, 32),
        "output": (2, 16),
    }


def test_merging_takes_the_larger_importance() -> None:
    first, second = normalize(sizes(0), "paper"), normalize(sizes(1), "paper")
    for kind in KINDS:
        expected = np.maximum(first[kind].numpy(), second[kind].numpy())
        np.testing.assert_array_equal(accumulate(first, second)[kind].numpy(), expected)


def test_plasticity_is_the_mean_of_1_minus_importance() -> None:
    importance = normalize(sizes(), "paper")
    for kind in KINDS:
        expected = [1 - float(np.mean(layer.numpy())) for layer in importance[kind]]
        assert plasticity(importance)[kind] == pytest.approx(expected, abs=1e-6)


def test_plasticity_falls_with_the_number_of_domains() -> None:
    """Checks mean plasticity (1 - importance) after the random importances of 1, 3 and 7 domains are merged.

    With the published formula |tanh(z)|, and the maximum over domains, plasticity is 0.44, 0.20 and 0.09.
    """
    draw = torch.Generator().manual_seed(0)
    together = None
    left = []
    for _ in range(7):
        normal = {kind: torch.randn(1, 20_000, generator=draw) for kind in KINDS}
        new = normalize(normal, "paper")
        together = accumulate(together, new) if together else new
        left.append(plasticity(together)["inner"][0])
    assert [left[0], left[2], left[6]] == pytest.approx([0.44, 0.20, 0.09], abs=0.02)


@pytest.mark.parametrize("floor", [0.0, 0.3, 0.6, 0.99])
def test_the_floor_holds_in_each_layer_and_scales_by_one_factor(floor: float) -> None:
    importance = normalize(sizes(), "paper")
    found = with_floor(importance, floor)
    for kind in KINDS:
        for layer, before in zip(found[kind], importance[kind], strict=True):
            assert 1 - layer.mean() >= floor - 1e-6
            factor = layer / before
            torch.testing.assert_close(factor, factor.mean().expand_as(factor), atol=1e-5, rtol=1e-4)
            if 1 - before.mean() >= floor:
                assert torch.equal(layer, before)
    nothing = {kind: torch.zeros(2, UNITS[kind]) for kind in KINDS}
    assert not every(with_floor(nothing, floor)).any()


SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-6}
STEPS = 5
FREE_TOKENS, FIXED_TOKENS = slice(0, 10), slice(10, 20)
TIED = {"bert", "roberta", "distilbert", "electra", "modernbert", "gpt2"}


def importance(model: Any, seed: int = 0) -> dict[Kind, Tensor]:
    """Returns random importances in [0, 1]. In each layer, the first unit has 0 and the second has 1."""
    generator = torch.Generator().manual_seed(seed)
    found = {kind: torch.rand(each.shape, generator=generator) for kind, each in ones(model).items()}
    for each in found.values():
        each[:, 0], each[:, 1] = 0.0, 1.0
    return found


def tokens_importance(vocabulary: int = VOCABULARY) -> Tensor:
    """Returns random importances of tokens in [0, 1]. Tokens 0 to 9 have 0, and tokens 10 to 19 have 1."""
    found = torch.rand(vocabulary, generator=torch.Generator().manual_seed(2))
    found[FREE_TOKENS], found[FIXED_TOKENS] = 0.0, 1.0
    return found


def keep_of(model: Any, embedding: bool = True) -> dict[str, Tensor]:
    """Returns 1 - I for each parameter that `masked` masks, and 1 for parameters without a mask."""
    found = {name: torch.ones(()) for name, _ in model.named_parameters()}
    found |= {name: 1 - each for name, each in by_parameter(model, importance(model)).items()}
    if embedding:
        table = model.get_input_embeddings().weight
        name = next(name for name, parameter in model.named_parameters() if parameter is table)
        found[name] = 1 - tokens_importance(len(table))[:, None]
    return found


def masked(model: Any, target: Target = "update", embedding: bool = True) -> SoftMask:
    """Masks a model with random importance and returns the method that masked it."""
    rows = tokens_importance(len(model.get_input_embeddings().weight)) if embedding else None
    method = SoftMask(importance(model), target, rows)
    method.prepare_model(model, Setting())
    return method


def weight_in_use(model: Any, name: str) -> Tensor:
    """Returns the masked weight that the layer computes with. Its gradient flows to the parameter `name`."""
    module, _, part = name.rpartition(".")
    found: Tensor = in_use(model.get_submodule(module), part)
    return found


def trained(model: Any, method: SoftMask | None = None, decay: float = 0.0) -> dict[str, Tensor]:
    """Returns a model's weights after five AdamW steps with fixed random gradients.

    The gradients do not depend on the weights, so that masked and unmasked runs can be compared.
    """
    model = copy.deepcopy(model)
    if method:
        method.prepare_model(model, Setting())
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(named.values(), weight_decay=decay, **SETTINGS)
    for step in range(STEPS):
        for number, name in enumerate(sorted(named)):
            generator = torch.Generator().manual_seed(1000 * step + number)
            gradient = torch.randn(named[name].shape, generator=generator) * 1e-4
            (weight_in_use(model, name) * gradient).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {name: parameter.detach().clone() for name, parameter in named.items()}
    return method.merge(state) if method else state


def moved(model: Any) -> None:
    """Adds fixed random noise to all parameters of a model."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))


def gradients(model: Any) -> dict[str, Tensor]:
    """Returns a model's gradients of a loss that depends on its embeddings, layers and head."""
    model.zero_grad()
    positions = torch.arange(0, len(TOKENS), 2)
    loss_at(model, PACKED, positions, TOKENS[positions]).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_is_scaled_by_1_minus_importance(family: str, decay: float) -> None:
    """Checks AdamW's steps with and without weight decay.

    Weights with importance 0 must move exactly as without masks, and weights with importance 1 must not move.
    """
    model = ready(family)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    method = SoftMask(importance(model), "update", tokens_importance())
    plain, found = trained(model, decay=decay), trained(model, method, decay)
    assert plain.keys() == found.keys()
    for name, keep in keep_of(model).items():
        expected = start[name] + keep * (plain[name] - start[name])
        torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=1e-5)
        free, fixed = (each.expand_as(expected) for each in (keep == 1, keep == 0))
        assert torch.equal(found[name][free], plain[name][free])
        assert torch.equal(found[name][fixed], start[name][fixed])


def test_the_published_mask_has_little_effect_under_adam() -> None:
    """Checks the mean movement at importance 0.76, with target `gradient` (as published) and `update`.

    Adam divides by the gradient's size, so scaled gradients leave over 90% of the movement. Scaled updates leave 24%.
    """
    model = ready("bert")
    values = {kind: torch.full_like(each, 0.76) for kind, each in ones(model).items()}
    names = by_parameter(model, values)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}

    def movement(method: SoftMask | None = None) -> Tensor:
        found = trained(model, method)
        return torch.cat([(found[name] - start[name]).abs().flatten() for name in names]).mean()

    assert movement(SoftMask(values, "gradient")) / movement() > 0.9
    assert movement(SoftMask(values, "update")) / movement() == pytest.approx(0.24, rel=1e-3)


@pytest.mark.parametrize("target", ["update", "gradient"])
def test_without_importance_nothing_is_masked(target: Target) -> None:
    model = ready("bert")
    before = [type(module) for module in model.modules()]
    values = {kind: torch.zeros_like(each) for kind, each in ones(model).items()}
    SoftMask(values, target, torch.zeros(VOCABULARY)).prepare_model(model, Setting())
    assert [type(module) for module in model.modules()] == before


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_and_merged_models_compute_the_same(family: str) -> None:
    """Compares outputs and gradients with target `update`, which does not scale gradients.

    The gradient of a tied matrix is the sum over its two uses, as embeddings and as head.
    """
    model, other = ready(family), ready(family)
    before, method = states(model), masked(other)
    assert torch.equal(states(other), before)
    moved(other)
    merged = method.merge({name: each.detach().clone() for name, each in other.state_dict().items()})
    missing = model.load_state_dict(merged, strict=True).missing_keys
    assert not missing
    assert not torch.allclose(states(model), before, atol=1e-2)
    torch.testing.assert_close(states(other), states(model), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradients(other), gradients(model), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_published_mask_scales_gradients_and_nothing_else(family: str) -> None:
    model, other = ready(family), ready(family)
    method = masked(other, "gradient")
    assert torch.equal(states(other), states(model))
    expected = {name: keep_of(model)[name] * each for name, each in gradients(model).items()}
    torch.testing.assert_close(gradients(other), expected, atol=1e-6, rtol=1e-4)
    state = {name: each.clone() for name, each in other.state_dict().items()}
    assert all(torch.equal(each, state[name]) for name, each in method.merge(dict(state)).items())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_head_is_masked_with_the_embeddings_and_a_free_one_is_not(family: str) -> None:
    model = ready(family)
    masked(model)
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert (table.weight is head.weight) == (family in TIED)
    moved(model)
    assert not torch.equal(in_use(table, "weight"), table.weight)
    if family in TIED:
        assert head.weight_mask is table.weight_mask  # the embeddings and the tied head share one mask
        assert torch.equal(in_use(head, "weight"), in_use(table, "weight"))
    else:
        assert in_use(head, "weight") is head.weight


def test_earlier_hooks_stay() -> None:
    """Checks that masking keeps earlier forward hooks. The gates of units use such hooks, for example."""
    model, called = ready("bert"), []
    model.bert.encoder.layer[0].output.dense.register_forward_hook(lambda *_: called.append(1))
    masked(model)
    states(model)
    assert called == [1]


@pytest.mark.parametrize("rows", [VOCABULARY - 1, VOCABULARY + 14])
def test_importance_of_another_vocabulary_is_refused(rows: int) -> None:
    model = ready("bert")
    with pytest.raises(ModelError, match=f"measured for {rows} tokens, but the model has embeddings for {VOCABULARY}"):
        SoftMask(importance(model), "update", torch.ones(rows)).prepare_model(model, Setting())


def test_an_unsupported_layer_is_named() -> None:
    class Odd(nn.Linear):
        pass

    model = ready("bert")
    model.bert.encoder.layer[1].output.dense.__class__ = Odd
    with pytest.raises(ModelError, match=r"bert\.encoder\.layer\.1\.output\.dense\.weight cannot be masked: .* Odd"):
        masked(model)


def test_masks_are_not_part_of_a_checkpoint() -> None:
    model = ready("bert")
    names = model.state_dict().keys()
    masked(model)
    assert model.state_dict().keys() == names
    assert any(isinstance(module, Mask) for module in model.modules())
