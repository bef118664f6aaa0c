"""Tests measures of importance.

Expected gradients at gates are computed from the gradients of the parameters that produce a unit's output.
"""

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from adapt.config import Config, MethodConfig, ObjectiveConfig
from adapt.method.das import contrast, importance
from adapt.method.das.contrast import Disagreement
from adapt.method.das.criteria import Judged, MeasureSettings, Sums, gate_sizes, magnitudes, over_units, weight_sizes
from adapt.method.das.method import Das, DasOptions
from adapt.model.layers import KINDS, Gates, Kind, by_parameter, is_transposed, layers_of, ones, unit_counts
from adapt.objective.masking import MaskedLanguageModelling
from adapt.objective.objective import Batch, CausalLanguageModelling, Objective
from adapt.support.errors import ConfigError
from benchmarks.published import EqualNetworks, Unmasked, columns_of_heads, never_zeroed, other_texts
from tests.model.families import FAMILIES, VOCABULARY, ready

LENGTH = 12


class Tokenizer:
    """Provides the part of a tokenizer that the masking objective needs."""

    mask_token_id = 4
    all_special_ids = (0, 1, 2, 3, 4)

    def __len__(self) -> int:
        return VOCABULARY

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(VOCABULARY)}


def objective(family: str) -> Objective:
    if family in ("gpt2", "llama"):
        return CausalLanguageModelling()
    return MaskedLanguageModelling(ObjectiveConfig(mask_fraction=0.4), Tokenizer(), seed=1)  # type: ignore[arg-type]


def batch(seed: int = 0, rows: int = 5) -> Batch:
    """Returns a batch of random rows with different lengths. Each row is one document."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, VOCABULARY, (rows, LENGTH), generator=draw)
    lengths = torch.randint(4, LENGTH + 1, (rows,), generator=draw)
    starts = (torch.arange(LENGTH) == 0).expand(rows, LENGTH)
    return Batch(tokens, lengths, torch.zeros(rows).long(), torch.arange(rows) + 100 * seed, starts)


def measured(model: Any, loss: Judged, batches: list[Batch], **settings: Any) -> Sums:
    return gate_sizes(model, Gates(model), loss, enumerate(batches), MeasureSettings(**settings))


def summed_loss(model: Any, loss: Objective, rows: Batch) -> tuple[Tensor, int]:
    """Computes the summed loss row by row, without padding and with logits at all positions."""
    seen = loss.corrupt(rows)
    targets = iter(seen.targets.split(seen.positions.sum(1).tolist()))
    total = torch.zeros(())
    for ids, real, positions in zip(seen.input_ids, seen.real, seen.positions, strict=True):
        scores = model(input_ids=ids[real][None]).logits[0][positions[real]]
        total = total + cross_entropy(scores, next(targets), reduction="sum")
    return total, len(seen.targets)


def by_parameters(model: Any, loss: Objective, groups: list[Batch]) -> dict[Kind, Tensor]:
    """Computes each gate's mean absolute gradient from parameters. A gate g on W x has dL/dg = <dL/dW, W> at g = 1."""
    found = {kind: torch.zeros(2, size) for kind, size in unit_counts(model).items()}
    for rows in groups:
        model.zero_grad()
        total, count = summed_loss(model, loss, rows)
        (total / count).backward()
        for number, layer in enumerate(layers_of(model)):
            out, outer = layer.part(layer.pattern.attention_out), layer.part(layer.pattern.outer)
            inner = layer.part(layer.pattern.inner[0])
            product, last = by_output(out), by_output(outer)
            found["head"][number] += product.sum(0).view(len(found["head"][number]), -1).sum(1).abs()
            is_product = len(layer.pattern.inner) == 2 or by_output(inner).shape[0] == 2 * last.shape[1]
            middle = last.sum(0) if is_product else by_output(inner).sum(1) + by_bias(inner)
            found["inner"][number] += middle.abs()
            found["output"][number] += (last.sum(1) + by_bias(outer)).abs()
    return {kind: each / len(groups) for kind, each in found.items()}


def by_output(module: Any) -> Tensor:
    product = (module.weight.grad * module.weight).detach()
    return product.T if is_transposed(module) else product  # the shape is [outputs, inputs]


def by_bias(module: Any) -> Any:
    return 0.0 if module.bias is None else (module.bias.grad * module.bias).detach()


def single_rows(rows: Batch) -> list[Batch]:
    each = (rows.tokens, rows.lengths, rows.epochs, rows.rows, rows.starts)
    return [Batch(*(column[row : row + 1] for column in each)) for row in range(len(rows.tokens))]


def close(found: Any, expected: Any, **tolerance: float) -> None:
    for kind in KINDS:
        torch.testing.assert_close(
            found[kind].float(), expected[kind].float(), **{"atol": 1e-5, "rtol": 1e-3, **tolerance}
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("granularity", ["batch", "example"])
def test_importance_is_the_mean_size_of_the_groups_gradients(family: str, granularity: Any) -> None:
    batches, loss = [batch(0), batch(1, rows=3)], objective(family)
    sums = measured(ready(family), loss, batches, granularity=granularity)
    groups = batches if granularity == "batch" else [row for rows in batches for row in single_rows(rows)]
    assert sums.groups == len(groups)
    assert sums.text == sum(int(rows.lengths.sum()) for rows in batches)
    close(sums.means, by_parameters(ready(family), loss, groups))


@pytest.mark.parametrize("granularity", ["batch", "example"])
def test_repeated_batches_do_not_change_importance(granularity: Any) -> None:
    model, loss = ready("bert"), objective("bert")
    one = measured(model, loss, [batch()], granularity=granularity)
    many = measured(model, loss, [batch()] * 4, granularity=granularity)
    close(many.means, one.means, rtol=1e-6)


@pytest.mark.parametrize("granularity", ["batch", "example"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_importance_does_not_depend_on_the_number_of_passes(granularity: Any, rows: int) -> None:
    model, loss = ready("bert"), objective("bert")
    settings = {"granularity": granularity, "embeddings": "gradient"}
    whole, pieces = (measured(model, loss, [batch()], rows=each, **settings) for each in (64, rows))
    close(pieces.units, whole.units)
    torch.testing.assert_close(pieces.tokens, whole.tokens, atol=1e-5, rtol=1e-3)


def test_single_rows_cannot_cancel() -> None:
    """Checks that importance per row is at least importance per batch.

    Every row has the same number of predictions, so the batch's gradient is the mean of the rows' gradients, in which
    gradients of opposite sign cancel.
    """
    rows = replace(batch(), lengths=torch.full((5,), LENGTH))
    model, loss = ready("bert"), objective("bert")
    together, apart = (measured(model, loss, [rows], granularity=each).means for each in ("batch", "example"))
    for kind in KINDS:
        assert (apart[kind] >= together[kind] - 1e-6).all()
        assert apart[kind].mean() > 1.2 * together[kind].mean()


def test_batches_can_be_measured_in_several_processes() -> None:
    """Checks that the sums over two shares of the batches, in any order, add up to the sums over all batches."""
    batches, loss = [batch(seed) for seed in range(4)], objective("bert")
    whole = measured(ready("bert"), loss, batches, embeddings="frequency")
    numbered = list(enumerate(batches))
    model = ready("bert")
    gates, settings = Gates(model), MeasureSettings(embeddings="frequency")
    parts = [gate_sizes(model, gates, loss, share, settings) for share in (numbered[::2][::-1], numbered[1::2])]
    total = parts[0] + parts[1]
    close(total.means, whole.means, rtol=1e-6)
    assert torch.equal(total.tokens, whole.tokens)  # type: ignore[arg-type]
    assert (total.groups, total.text) == (whole.groups, whole.text)


def test_rows_without_predictions_do_not_count_as_groups() -> None:
    """Checks a row of one token, which has no prediction under the causal objective."""
    loss, rows = CausalLanguageModelling(), batch()
    rows.lengths[2] = 1
    sums = measured(ready("gpt2"), loss, [rows], granularity="example")
    assert sums.groups == 4
    others = [row for number, row in enumerate(single_rows(rows)) if number != 2]
    close(sums.means, by_parameters(ready("gpt2"), loss, others))


# A measurement restores the state of the model and of the random numbers


@pytest.mark.parametrize("dropout_seed", [None, 3])
def test_the_model_and_the_random_state_are_restored(dropout_seed: int | None) -> None:
    model = ready("bert").train()
    model.bert.encoder.layer[0].eval()
    model.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    model.bert.encoder.layer[1].output.dense.weight.grad = torch.ones(16, 32)
    modes, trained = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    hooks = Gates(model)
    gate_sizes(
        model,
        hooks,
        objective("bert"),
        [(0, batch())],
        MeasureSettings(dropout_seed=dropout_seed, embeddings="gradient"),
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == trained
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    kept = {name for name, each in model.named_parameters() if each.grad is not None}
    assert kept == {"bert.encoder.layer.1.output.dense.weight"}
    assert torch.equal(model.bert.encoder.layer[1].output.dense.weight.grad, torch.ones(16, 32))


def test_a_measurement_does_not_change_the_first_step() -> None:
    def stepped(measure: bool) -> dict[str, Tensor]:
        model, loss = ready("bert").train(), objective("bert")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(0)
        if measure:
            measured(model, loss, [batch(1), batch(2)], dropout_seed=1)
        loss.loss(model, loss.corrupt(batch())).backward()
        optimizer.step()
        return dict(model.named_parameters())

    plain, after = stepped(measure=False), stepped(measure=True)
    assert all(torch.equal(plain[name], after[name]) for name in plain)


# Importance of tokens


@pytest.mark.parametrize("family", ["bert", "gpt2", "electra"])
@pytest.mark.parametrize("granularity", ["batch", "example"])
def test_gradients_of_tokens_equal_those_of_embedding_rows(family: str, granularity: Any) -> None:
    loss, batches = objective(family), [batch(0), batch(1)]
    sums = measured(ready(family), loss, batches, granularity=granularity, embeddings="gradient")
    groups = batches if granularity == "batch" else [row for rows in batches for row in single_rows(rows)]
    expected = torch.zeros(VOCABULARY)
    for rows in groups:
        model = ready(family)
        output = model.get_output_embeddings()
        # untie the two matrices, because importance only counts the gradient of the input embeddings
        output.weight = torch.nn.Parameter(output.weight.detach().clone())
        total, count = summed_loss(model, loss, rows)
        (total / count).backward()
        expected += model.get_input_embeddings().weight.grad.norm(dim=1)
    assert sums.tokens is not None
    torch.testing.assert_close(sums.tokens.float(), expected, atol=1e-5, rtol=1e-3)


def test_frequencies_count_the_unmasked_tokens() -> None:
    batches = [batch(0), batch(1)]
    sums = measured(ready("bert"), objective("bert"), batches, embeddings="frequency")
    counts = Counter(np.concatenate([rows.tokens[rows.real].numpy() for rows in batches]).tolist())
    assert sums.tokens is not None
    assert {token: int(count) for token, count in enumerate(sums.tokens) if count} == counts


def test_tokens_are_not_measured_by_default() -> None:
    assert measured(ready("bert"), objective("bert"), [batch()]).tokens is None


ZERO = MeasureSettings()


def one_by_one(model: Any, values: dict[str, Tensor]) -> dict[Kind, Tensor]:
    """Sums values over each unit's weights.

    A unit's weights are those to which `by_parameter` assigns a value when only this unit has the value 1.
    """
    counts = unit_counts(model)
    found = {kind: torch.zeros(2, size) for kind, size in counts.items()}
    for kind, size in counts.items():
        for layer in range(2):
            for unit in range(size):
                alone = {each: torch.zeros(2, number) for each, number in counts.items()}
                alone[kind][layer, unit] = 1
                spread = by_parameter(model, alone)
                found[kind][layer, unit] = sum(float((values[name] * each).sum()) for name, each in spread.items())
    return found


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
def test_values_are_summed_over_each_units_weights(family: str) -> None:
    """Checks sums over weights in all families but Llama, whose heads share weights. The next test covers Llama."""
    model = ready(family)
    values = {name: torch.randn_like(each) for name, each in model.named_parameters()}
    expected = one_by_one(model, values)
    for kind, found in over_units(model, values).items():
        torch.testing.assert_close(found, expected[kind], rtol=1e-3, atol=1e-4)


def test_weights_shared_by_heads_are_divided() -> None:
    model = ready("llama")
    values = {name: torch.ones_like(each) for name, each in model.named_parameters()}
    found = over_units(model, values)["head"].sum()
    owned = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert found == sum(each.numel() for name, each in values.items() if any(part in name for part in owned))


def gradients(model: Any, rows: Batch, loss: Any) -> dict[str, Tensor]:
    model.zero_grad()
    total, count = summed_loss(model, loss, rows)
    (total / count).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def by_hand(model: Any, loss: Any, groups: list[Batch], criterion: str) -> dict[Kind, Tensor]:
    weights = {name: each.detach() for name, each in model.named_parameters()}
    sums = {kind: torch.zeros(2, size) for kind, size in unit_counts(model).items()}
    for rows in groups:
        own = gradients(model, rows, loss)
        values = {name: weights[name] * each if criterion == "taylor" else each.square() for name, each in own.items()}
        for kind, found in one_by_one(model, values).items():
            sums[kind] += {"taylor": found.abs(), "gradient": found.sqrt(), "fisher": found}[criterion]
    return {kind: each / len(groups) for kind, each in sums.items()}


@pytest.mark.parametrize("criterion", ["gradient", "fisher", "taylor"])
@pytest.mark.parametrize("granularity", ["batch", "example"])
def test_weight_criteria_are_means_over_groups(criterion: str, granularity: Any) -> None:
    """Checks groups of rows. A pass has at most two rows here, so some groups need several passes."""
    batches, loss = [batch(0), batch(1, rows=3)], objective("bert")
    groups = batches if granularity == "batch" else [row for rows in batches for row in single_rows(rows)]
    settings = replace(ZERO, granularity=granularity, rows=2, embeddings="frequency")
    model = ready("bert")
    sums = weight_sizes(model, loss, enumerate(batches), settings, criterion)
    expected = by_hand(ready("bert"), loss, groups, criterion)
    assert (sums.groups, sums.text) == (len(groups), sum(int(each.lengths.sum()) for each in batches))
    for kind in KINDS:
        torch.testing.assert_close(sums.means[kind].float(), expected[kind], rtol=1e-3, atol=1e-5)
    assert sums.tokens is not None
    assert sums.tokens.sum() == sums.text
    assert all(each.requires_grad and each.grad is None for each in model.parameters())


def test_magnitude_is_the_norm_of_a_units_weights() -> None:
    model = ready("bert")
    squares = {name: each.detach().square() for name, each in model.named_parameters()}
    for kind, found in one_by_one(model, squares).items():
        torch.testing.assert_close(magnitudes(model)[kind], found.sqrt(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("importance", "embeddings"), [("fisher", "gradient"), ("magnitude", "frequency")])
def test_embeddings_that_a_criterion_cannot_measure_are_refused(
    tiny_bert: Path, importance: Any, embeddings: Any
) -> None:
    config = Config(method=MethodConfig("das"))
    with pytest.raises(ConfigError, match=f"das.embeddings is {embeddings}, which das.importance {importance}"):
        Das(DasOptions(importance=importance, embeddings=embeddings)).check(config, tiny_bert)
    Das(DasOptions(importance="taylor", embeddings="frequency")).check(config, tiny_bert)


def full() -> Batch:
    return replace(batch(), lengths=torch.full((5,), LENGTH))


def test_equal_networks_have_gradients_of_rounding_size() -> None:
    model = ready("bert")
    noise, views = measured(model, EqualNetworks(), [full()]), measured(model, Disagreement(), [full()], dropout_seed=0)
    assert EqualNetworks().loss(model, EqualNetworks().corrupt(full())).abs() < 1e-4
    for kind in KINDS:
        assert noise.units[kind].sum() > 0
        assert noise.units[kind].max() < 1e-4 * views.units[kind].max()


def test_unmasked_rows_have_the_same_predicted_positions() -> None:
    judged = objective("bert")
    ours, theirs = judged.corrupt(batch()), Unmasked(judged).corrupt(batch())
    assert torch.equal(ours.positions, theirs.positions)
    assert torch.equal(theirs.input_ids, batch().tokens)
    assert torch.equal(theirs.targets, theirs.input_ids[theirs.positions])
    assert not torch.equal(ours.input_ids, theirs.input_ids)


def test_gradients_that_are_never_zeroed_grow_with_the_number_of_batches() -> None:
    """Checks the mean of accumulated gradients over four equal batches with gradient g.

    The gradient after batch k is k g, so the mean of |k g| over n batches is (n + 1) / 2 |g|, here 2.5 |g|.
    """
    model, judged = ready("bert"), objective("bert")
    once = measured(model, judged, [batch()]).units
    found = never_zeroed(model, Gates(model), judged, [(number, batch()) for number in range(4)])
    for kind in KINDS:
        torch.testing.assert_close(found[kind].double(), 2.5 * once[kind], rtol=1e-4, atol=1e-9)


def test_column_masks_of_heads_replace_row_masks() -> None:
    model = ready("bert")
    values = {kind: torch.rand(each.shape) for kind, each in ones(model).items()}
    ours = by_parameter(model, values)
    with columns_of_heads():
        theirs = vars(importance)["by_parameter"](model, values)
    other = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    heads = {f"attention.self.{part}.weight" for part in ("query", "key", "value")}
    assert {name.split(".", 4)[-1] for name in other} == heads
    assert all(torch.equal(ours[name].T, theirs[name]) for name in other)
    assert vars(importance)["by_parameter"] is by_parameter


@pytest.mark.parametrize("documents", [3, 4])
def test_other_texts_pairs_neighbouring_rows(documents: int) -> None:
    torch.manual_seed(0)
    first, second = torch.randn(2, documents, 8)
    rows = [*first, *second]
    pairs = [(rows[2 * n], rows[2 * n + 1]) for n in range(documents)]
    expected = []
    for own, positive in pairs:
        scores = torch.stack([cosine_similarity(own, other, dim=0) for _, other in pairs]) / 0.05
        expected.append(scores.logsumexp(0) - cosine_similarity(own, positive, dim=0) / 0.05)
    with other_texts():
        found = contrast.info_nce(first, second, None, 0.05, documents)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-4)
