"""Compares the contrastive loss of DAS with a slow reference that loops over documents and embeds them separately."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from adapt.method.das import contrast as module
from adapt.method.das.contrast import Contrast, info_nce, injected
from adapt.method.das.method import DasOptions
from adapt.model.layers import Gates, Kind, ones
from adapt.model.packing.packed import Packed
from adapt.model.sparse_prediction import loss_at
from adapt.model.states import last_hidden_state
from adapt.objective.objective import Corrupted
from tests.model.families import documents, ready

pytestmark = pytest.mark.heavy

LENGTHS = 7, 1, 4, 9, 2
ROW = 12
FAMILIES = ["bert", "modernbert", "gpt2", "llama"]
TEMPERATURE = 0.5
COSTS = ["exact", "lean", "economy"]


def config(**changes: Any) -> DasOptions:
    return DasOptions(**{"contrast_temperature": TEMPERATURE, **changes})


def importance(model: Any) -> dict[Kind, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {kind: torch.rand(each.shape, generator=generator) for kind, each in ones(model).items()}


def rows(texts: list[Tensor]) -> Corrupted:
    """Puts whole documents into rows of 12 tokens and marks every third text position for prediction."""
    filled: list[list[Tensor]] = [[]]
    for text in texts:
        if sum(map(len, filled[-1])) + len(text) > ROW:
            filled.append([])
        filled[-1].append(text)
    tokens = torch.ones(len(filled), ROW, dtype=torch.int64)
    real, starts = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
    for row, content in enumerate(filled):
        begin = 0
        for text in content:
            tokens[row, begin : begin + len(text)] = text
            starts[row, begin] = True
            begin += len(text)
        real[row, :begin] = True
    positions = real & (torch.arange(ROW) % 3 == 0)
    return Corrupted(tokens, real, starts, positions, torch.full((int(positions.sum()),), 7))


def by_hand(first: Tensor, second: Tensor, previous: Tensor | None) -> Tensor:
    """Computes the contrastive loss of each document from the formula, with loops."""

    def closeness(one: Tensor, other: Tensor) -> Tensor:
        return (cosine_similarity(one, other, dim=0) / TEMPERATURE).exp()

    losses = []
    for number, anchor in enumerate(first):
        below = sum(closeness(anchor, each) for each in second)
        if previous is not None:
            below = below + sum(closeness(anchor, each) for each in previous)
        losses.append(-(closeness(anchor, second[number]) / below).log())
    return torch.stack(losses)


def pooled(model: Any, text: Tensor, gates: Gates | None = None, values: Any = None) -> Tensor:
    """Embeds one document in its own forward pass and returns the mean of its last hidden states."""
    with gates.set(values) if gates else nullcontext():
        return last_hidden_state(model, Packed.single(text)).mean(0)


def separately(model: Any, texts: list[Tensor], cost: str, values: Any, gates: Gates | None) -> Tensor:
    """Computes the expected contrast per document, with a separate forward pass for each view of each document."""
    first, second = (torch.stack([pooled(model, text) for text in texts]) for _ in range(2))
    previous = None
    if gates:
        previous = torch.stack([pooled(model, text, gates, values) for text in texts])
        previous = previous if cost == "exact" else previous.detach()
    return by_hand(first, second, previous)


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def passed(contrast: Contrast, model: Any, *parts: Corrupted) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Runs the passes of one step and returns the summed loss, the contrast per document, and the gradients.

    Gradients are computed for the summed loss plus the mean contrast.
    """
    model.zero_grad()
    total, every = torch.zeros(()), []
    for loss, added, each in contrast.losses(model, parts):
        (loss + added).backward()
        total += loss.detach()
        every.append(each)
    return total, torch.cat(every), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def draw(count: int, seed: int) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("known", [True, False])
def test_info_nce_equals_the_formula(count: int, known: bool) -> None:
    first, second, previous = draw(count, 1), draw(count, 2), draw(count, 3) if known else None
    found = info_nce(first, second, previous, TEMPERATURE, most=5)
    torch.testing.assert_close(found, by_hand(first, second, previous), rtol=1e-5, atol=1e-6)


def test_info_nce_without_other_documents_is_0() -> None:
    found = info_nce(draw(0, 1), draw(0, 2), draw(0, 3), TEMPERATURE, most=5)
    assert (found.shape, found.sum()) == ((0,), 0)
    # the loss is 0, because there are no other documents
    assert info_nce(draw(1, 1), draw(1, 2), None, TEMPERATURE, most=5).tolist() == [0.0]


@pytest.mark.parametrize(("most", "sizes"), [(9, [7]), (7, [7]), (6, [3, 4]), (3, [2, 2, 3]), (1, [1] * 7)])
def test_documents_are_compared_in_groups_of_about_equal_size(most: int, sizes: list[int]) -> None:
    views = [draw(7, seed) for seed in range(3)]
    expected = [by_hand(*group) for group in zip(*(view.split(sizes) for view in views), strict=True)]
    torch.testing.assert_close(info_nce(*views, TEMPERATURE, most), torch.cat(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("cost", ["exact", "lean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_documents_give_the_same_contrast_as_separate_ones(family: str, cost: Any, known: bool) -> None:
    """Compares losses and gradients. Only cost `exact` backpropagates through the view with importance gates."""
    model, texts = ready(family), documents(*LENGTHS)
    gates, values = (Gates(model), importance(model)) if known else (None, None)
    seen = rows(texts)
    loss, each, found = passed(Contrast(config(contrast_cost=cost), gates, values), model, seen)

    model = ready(family)
    expected = separately(model, texts, cost, values, Gates(model) if known else None)
    expected_loss = loss_at(model, seen.packed(), seen.asked(), seen.targets)
    torch.testing.assert_close(each, expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-5, atol=1e-4)
    wanted = gradients(model, expected_loss + expected.mean())
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("cost", ["exact", "lean"])
@pytest.mark.parametrize("family", ["llama", "modernbert"])
def test_injected_dropout_is_in_every_view_except_the_objectives(
    family: str, cost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that the contrast's views have dropout, and that the objective's loss has no dropout.

    The test replaces dropout with a constant factor, so that it can recompute each view document by document.
    """
    monkeypatch.setattr("adapt.method.das.contrast.QuickDropout", lambda p: lambda states: p * states)
    model, texts = ready(family).train(), documents(*LENGTHS)
    gates, values, views = Gates(model), importance(model), injected(model, 0.5)
    assert views
    seen = rows(texts)
    loss, each, found = passed(Contrast(config(contrast_cost=cost), gates, values, views), model, seen)

    model = ready(family).train()
    gates, views = Gates(model), injected(model, 0.5)
    assert views
    first = torch.stack([pooled(model, text) for text in texts])
    with views.on():
        second = torch.stack([pooled(model, text) for text in texts])
        previous = torch.stack([pooled(model, text, gates, values) for text in texts])
    assert not torch.allclose(first, second, rtol=0.1)
    expected = by_hand(first, second, previous if cost == "exact" else previous.detach())
    expected_loss = loss_at(ready(family), seen.packed(), seen.asked(), seen.targets)
    torch.testing.assert_close(each, expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-5, atol=1e-4)
    wanted = gradients(model, loss_at(model, seen.packed(), seen.asked(), seen.targets) + expected.mean())
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


def test_exact_and_lean_differ_in_their_gradient() -> None:
    found = []
    for cost in ("exact", "lean"):
        model = ready("bert")
        contrast = Contrast(config(contrast_cost=cost), Gates(model), importance(model))
        _, added, each = next(contrast.losses(model, [rows(documents(*LENGTHS))]))
        found.append((each, gradients(model, added)["bert.encoder.layer.0.output.dense.weight"]))
    (one, first), (other, second) = found
    torch.testing.assert_close(one, other)
    assert (first - second).norm() > 0.01 * first.norm()


@pytest.mark.parametrize("cost", COSTS)
def test_reordering_documents_does_not_change_their_contrast(cost: Any) -> None:
    model, texts = ready("bert"), documents(6, 6, 6, 6, 6, 6)
    contrast = Contrast(config(contrast_cost=cost, economy_fraction=0.99), Gates(model), importance(model))
    order = [3, 0, 5, 1, 4, 2]
    _, each, _ = passed(contrast, model, rows(texts))
    _, moved, _ = passed(contrast, model, rows([texts[number] for number in order]))
    assert each.std() > 1e-3
    torch.testing.assert_close(moved, each[order], rtol=1e-4, atol=1e-5)


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, ...]]:
    """Records, for each call of `info_nce`, the views that it compares."""
    seen: list[tuple[Tensor, ...]] = []
    compare = module.info_nce

    def recorded(*arguments: Any) -> Tensor:
        seen.append(tuple(each for each in arguments[:3] if each is not None))
        return compare(*arguments)

    monkeypatch.setattr(module, "info_nce", recorded)
    return seen


@pytest.mark.parametrize("cost", COSTS)
def test_two_views_of_a_document_differ_only_by_dropout(cost: Any, views: list) -> None:
    """Checks that each first view is nearest to the second view of the same document, and never equal to it."""
    model = ready("bert").train()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.02  # with more dropout, this small model would confuse documents
    torch.manual_seed(0)
    passed(Contrast(config(contrast_cost=cost), Gates(model), importance(model)), model, rows(documents(*[8] * 6)))
    ((first, second, previous),) = views
    assert first.shape == second.shape == previous.shape
    assert not torch.isclose(first, second).any()
    nearness = cosine_similarity(first[:, None], second[None], dim=2)
    assert nearness.argmax(1).tolist() == list(range(len(first)))
    assert previous.requires_grad == (cost == "exact")


@pytest.mark.parametrize(
    ("fraction", "count", "taken"),
    [(0.25, 5, [0, 2]), (0.5, 5, [0, 1, 3]), (0.9, 5, [0, 1, 2, 3, 4]), (0.1, 2, [0, 1]), (0.5, 1, [0])],
)
def test_economy_compares_evenly_spaced_documents(fraction: float, count: int, taken: list[int]) -> None:
    """Checks cost `economy`: it compares two or more documents if it can. The loss covers all documents."""
    model, texts = ready("bert"), documents(*LENGTHS[:count])
    gates, values, seen = Gates(model), importance(model), rows(texts)
    contrast = Contrast(config(contrast_cost="economy", economy_fraction=fraction), gates, values)
    loss, each, _ = passed(contrast, model, seen)
    expected = separately(model, [texts[number] for number in taken], "economy", values, gates)
    torch.testing.assert_close(each, expected.detach(), rtol=1e-4, atol=1e-4)
    expected_loss = loss_at(model, seen.packed(), seen.asked(), seen.targets)
    torch.testing.assert_close(loss, expected_loss.detach())


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("cost", COSTS)
def test_the_head_runs_only_on_predictions(cost: Any, known: bool) -> None:
    model, seen = ready("bert"), rows(documents(*LENGTHS))
    shapes: list[Any] = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: shapes.append(args[0].shape[:-1]))
    contrast = Contrast(config(contrast_cost=cost), *((Gates(model), importance(model)) if known else ()))
    extra = [(1, 0)] if known and cost != "exact" else []
    passed(contrast, model, seen)
    assert shapes == [*extra, (1, len(seen.targets))]
    shapes.clear()
    parts = seen.split(1)
    passed(contrast, model, *parts)
    assert shapes == [*([*extra, (1, 0)] * len(parts)), *((1, len(part.targets)) for part in parts)]


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_gradient_checkpointing_changes_nothing(family: str, cost: Any) -> None:
    """Checks that layers which run again in the backward pass use the gates of their forward pass."""
    found = []
    for checkpointing in (False, True):
        model = ready(family).train()
        contrast = Contrast(config(contrast_cost=cost), Gates(model), importance(model))
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for size in (2, 1, 2, 1):  # gates of one micro-batch must not affect the next
            torch.manual_seed(3)
            found.append(passed(contrast, model, *rows(documents(*LENGTHS)).split(size))[2])
    for number, other in enumerate(found[2:]):
        torch.testing.assert_close(other, found[number % 2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cost", COSTS)
def test_a_pass_without_predictions_and_with_a_single_token(cost: Any) -> None:
    """Checks a step with one document of one token, which has no prediction under the causal objective."""
    model, (text,) = ready("gpt2"), documents(1)
    nowhere = torch.zeros(1, 1, dtype=torch.bool)
    seen = Corrupted(text[None], ~nowhere, ~nowhere, nowhere, text[:0])
    values, gates = importance(model), Gates(model)
    loss, each, found = passed(Contrast(config(contrast_cost=cost), gates, values), model, seen)
    assert loss == 0
    torch.testing.assert_close(each, separately(model, [text], cost, values, gates).detach(), rtol=1e-4, atol=1e-5)
    assert all(gradient.isfinite().all() for gradient in found.values())


@pytest.mark.parametrize("most", [100, 4])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_micro_batches_change_neither_value_nor_gradient(family: str, cost: Any, known: bool, most: int) -> None:
    """Checks micro-batches of up to 100, 3 and 1 rows. The model has no dropout, so all three runs must agree."""
    seen = rows(documents(*LENGTHS, 3, 8, 2, 11, 1, 1, 1, 5))
    found = []
    for size in (100, 3, 1):
        model = ready(family)
        gates, values = (Gates(model), importance(model)) if known else (None, None)
        settings = config(contrast_cost=cost, contrast_documents=most, economy_fraction=0.4)
        found.append(passed(Contrast(settings, gates, values), model, *seen.split(size)))
    assert len(seen.split(1)) > 5
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


def check_same_dropout(model: Any, contrast: Contrast, views: list[tuple[Tensor, ...]], monkeypatch: Any) -> None:
    """Checks that the passes with gradients compute the same views as the earlier passes without gradients."""
    again: list[tuple[Tensor, ...]] = []
    make = contrast.training_pass

    def recorded(*arguments: Any) -> Any:
        loss, made = make(*arguments)
        again.append(made)
        return loss, made

    monkeypatch.setattr(contrast, "training_pass", recorded)
    torch.manual_seed(0)
    passed(contrast, model, *rows(documents(*LENGTHS, 3, 8, 2, 11)).split(1))
    ((*compared,),) = views
    assert not torch.isclose(compared[0], compared[1]).all(1).any()
    for first, second in zip(compared, map(torch.cat, zip(*again, strict=True)), strict=False):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_repeated_passes_draw_the_same_dropout(
    family: str, cost: Any, views: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ready(family).train()
    contrast = Contrast(config(contrast_cost=cost), Gates(model), importance(model), injected(model, 0.3))
    check_same_dropout(model, contrast, views, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_compiled_layers_draw_the_same_dropout(family: str, views: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that repeated passes of traced layers draw the same dropout. `test_das` tests compiled code."""
    model = ready(family).train()
    contrast = Contrast(config(), Gates(model), importance(model), injected(model, 0.3))
    for layer in model.bert.encoder.layer if family == "bert" else model.model.layers:
        layer.compile(backend="aot_eager")
    check_same_dropout(model, contrast, views, monkeypatch)
