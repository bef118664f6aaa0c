"""Sizes of gradients at gates, against gradients of the parameters that make a unit's output."""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from adapt.config import ObjectiveConfig
from adapt.method.das.measure import Judged, MeasureSettings, Sums, gate_sizes
from adapt.model.layers.pattern import is_transposed, layers_of
from adapt.model.layers.units import KINDS, Gates, Kind, unit_counts
from adapt.objective.base import Batch, Objective
from adapt.objective.causal import CausalLanguageModelling
from adapt.objective.mlm import MaskedLanguageModelling
from tests.model.families import FAMILIES, VOCABULARY, ready

LENGTH = 12


class Tokenizer:
    """What the objective asks of one."""

    mask_token_id = 4
    all_special_ids = (0, 1, 2, 3, 4)

    def __len__(self) -> int:
        return VOCABULARY


def objective(family: str) -> Objective:
    if family in ("gpt2", "llama"):
        return CausalLanguageModelling()
    return MaskedLanguageModelling(ObjectiveConfig(mask_fraction=0.4), Tokenizer(), seed=1)  # type: ignore[arg-type]


def batch(seed: int = 0, rows: int = 5) -> Batch:
    """Rows of different lengths, each one document."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, VOCABULARY, (rows, LENGTH), generator=draw)
    lengths = torch.randint(4, LENGTH + 1, (rows,), generator=draw)
    starts = (torch.arange(LENGTH) == 0).expand(rows, LENGTH)
    return Batch(tokens, lengths, torch.zeros(rows).long(), torch.arange(rows) + 100 * seed, starts)


def measured(model: Any, loss: Judged, batches: list[Batch], **settings: Any) -> Sums:
    return gate_sizes(model, Gates(model), loss, enumerate(batches), MeasureSettings(**settings))


def summed_loss(model: Any, loss: Objective, rows: Batch) -> tuple[Tensor, int]:
    """Row by row, with the whole head and transformers' own cut of the sequence."""
    seen = loss.corrupt(rows)
    targets = iter(seen.targets.split(seen.positions.sum(1).tolist()))
    total = torch.zeros(())
    for ids, real, positions in zip(seen.input_ids, seen.real, seen.positions, strict=True):
        scores = model(input_ids=ids[real][None]).logits[0][positions[real]]
        total = total + cross_entropy(scores, next(targets), reduction="sum")
    return total, len(seen.targets)


def by_parameters(model: Any, loss: Objective, groups: list[Batch]) -> dict[Kind, Tensor]:
    """A gate's gradient is that of the parameters behind it times themselves: g W x has dL/dg = <dL/dW, W> at g = 1."""
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
    return product.T if is_transposed(module) else product  # [outputs, inputs]


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
def test_is_the_mean_size_of_the_gradients_of_groups(family: str, granularity: Any) -> None:
    batches, loss = [batch(0), batch(1, rows=3)], objective(family)
    sums = measured(ready(family), loss, batches, granularity=granularity)
    groups = batches if granularity == "batch" else [row for rows in batches for row in single_rows(rows)]
    assert sums.groups == len(groups)
    assert sums.text == sum(int(rows.lengths.sum()) for rows in batches)
    close(sums.means, by_parameters(ready(family), loss, groups))


@pytest.mark.parametrize("granularity", ["batch", "example"])
def test_equal_batches_give_the_importance_of_one(granularity: Any) -> None:
    model, loss = ready("bert"), objective("bert")
    one = measured(model, loss, [batch()], granularity=granularity)
    many = measured(model, loss, [batch()] * 4, granularity=granularity)
    close(many.means, one.means, rtol=1e-6)


@pytest.mark.parametrize("granularity", ["batch", "example"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_does_not_depend_on_the_passes_a_batch_takes(granularity: Any, rows: int) -> None:
    model, loss = ready("bert"), objective("bert")
    settings = {"granularity": granularity, "embeddings": "gradient"}
    whole, pieces = (measured(model, loss, [batch()], rows=each, **settings) for each in (64, rows))
    close(pieces.units, whole.units)
    torch.testing.assert_close(pieces.tokens, whole.tokens, atol=1e-5, rtol=1e-3)


def test_rows_cannot_cancel_one_by_one() -> None:
    """Every row has as many predictions, so the batch's gradient is the mean of theirs."""
    rows = replace(batch(), lengths=torch.full((5,), LENGTH))
    model, loss = ready("bert"), objective("bert")
    together, apart = (measured(model, loss, [rows], granularity=each).means for each in ("batch", "example"))
    for kind in KINDS:
        assert (apart[kind] >= together[kind] - 1e-6).all()
        assert apart[kind].mean() > 1.2 * together[kind].mean()


def test_batches_may_be_measured_anywhere() -> None:
    """What two processes find of some batches each, in any order, adds up to what one finds."""
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


def test_rows_without_predictions_are_no_groups() -> None:
    """A row of one token has nothing to predict, under the causal objective."""
    loss, rows = CausalLanguageModelling(), batch()
    rows.lengths[2] = 1
    sums = measured(ready("gpt2"), loss, [rows], granularity="example")
    assert sums.groups == 4
    others = [row for number, row in enumerate(single_rows(rows)) if number != 2]
    close(sums.means, by_parameters(ready("gpt2"), loss, others))


# What is left as it was


@pytest.mark.parametrize("dropout_seed", [None, 3])
def test_nothing_is_left_behind(dropout_seed: int | None) -> None:
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


def test_the_first_step_is_that_of_training_without_importance() -> None:
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


# Tokens


@pytest.mark.parametrize("family", ["bert", "gpt2", "electra"])
@pytest.mark.parametrize("granularity", ["batch", "example"])
def test_gradients_of_tokens_are_those_of_the_rows_of_the_embeddings(family: str, granularity: Any) -> None:
    loss, batches = objective(family), [batch(0), batch(1)]
    sums = measured(ready(family), loss, batches, granularity=granularity, embeddings="gradient")
    groups = batches if granularity == "batch" else [row for rows in batches for row in single_rows(rows)]
    expected = torch.zeros(VOCABULARY)
    for rows in groups:
        model = ready(family)
        output = model.get_output_embeddings()
        output.weight = torch.nn.Parameter(output.weight.detach().clone())  # tied: only the input side counts
        total, count = summed_loss(model, loss, rows)
        (total / count).backward()
        expected += model.get_input_embeddings().weight.grad.norm(dim=1)
    assert sums.tokens is not None
    torch.testing.assert_close(sums.tokens.float(), expected, atol=1e-5, rtol=1e-3)


def test_frequencies_are_counts_of_the_text_as_it_is() -> None:
    batches = [batch(0), batch(1)]
    sums = measured(ready("bert"), objective("bert"), batches, embeddings="frequency")
    counts = Counter(np.concatenate([rows.tokens[rows.real].numpy() for rows in batches]).tolist())
    assert sums.tokens is not None
    assert {token: int(count) for token, count in enumerate(sums.tokens) if count} == counts


def test_tokens_are_free_unless_asked_for() -> None:
    assert measured(ready("bert"), objective("bert"), [batch()]).tokens is None
