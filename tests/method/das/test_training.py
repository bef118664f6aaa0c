"""Tests DAS in the training loop: ranks and ZeRO stages do not change results, and neutral options do nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from adapt.method.base import Method, Setting
from adapt.method.das.contrast import info_nce
from adapt.method.das.importance import Importance, save_importance
from adapt.method.das.method import Das, DasOptions
from adapt.model.layers import ones
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from adapt.train.model_options import checkpoint
from tests.train.toy import GLOBAL_BATCH, Case, Objective, feed, model, moments, rate, settings

has_bf16 = torch.cpu.get_capabilities().get("avx512_bf16", False)
FREE = {"max_gradient_norm": 0.0}
NOTHING = 1e-6
"""Dropout rate too small to drop anything, so that results are comparable although ranks draw different numbers."""
FIRST_GENERAL = 5
"""Number of the first row of general text.

The first step has rows 0 to 7. The last three of these rows are general, so one of two ranks has no general text. All
later rows are general.
"""


class Outcome(NamedTuple):
    """Results of a training run on one rank."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]
    """Gradients of the first step, computed from AdamW's first moments."""
    weights: dict[str, torch.Tensor]
    report: dict[str, float]


def trained(case: Case, config: DasOptions | None, inputs: dict[str, Path]) -> Outcome:
    """Trains with DAS, or without a method if `config` is None."""
    method = Das(config) if config else Method()
    toy, training = model(case.dropout), settings(**case.training)
    method.prepare_model(toy, Setting(past=inputs, first_general=FIRST_GENERAL))
    if training.gradient_checkpointing:
        checkpoint(toy)
    passes = GLOBAL_BATCH // dist.get_world_size() // case.micro_batch
    engine = Engine(toy, training, case.zero_stage, case.precision, case.micro_batch, passes)
    loop = Loop(engine, Objective(), method, training, case.micro_batch, case.steps, seed=5)
    losses, gradients = [], {}
    for step, share in enumerate(feed(0, case.steps)):
        loss, _, _ = loop.step(share, step, rate(step))
        dist.all_reduce(loss)
        losses.append(loss.item())
        gradients = gradients or {name: first / (1 - 0.9) for name, (first, _) in moments(engine).items()}
    return Outcome(losses, gradients, method.merge(engine.full_state()), method.report())


def all_trained(cases: list[tuple[Case, DasOptions | None, dict[str, Path]]]) -> list[Outcome]:
    """Trains several runs one after another and returns their results."""
    return [trained(*case) for case in cases]


def saved(folder: Path, scale: float) -> dict[str, Path]:
    generator = torch.Generator().manual_seed(2)
    values = {kind: scale * torch.rand(each.shape, generator=generator) for kind, each in ones(model()).items()}
    save_importance(Importance(values, None, torch.arange(3)), model(), folder)
    return {"importance": folder}


@pytest.mark.parametrize("world", [1, 2])
def test_with_nothing_to_do_it_is_exactly_plain_training(ranks, tmp_path: Path, world: int) -> None:
    nothing, something = saved(tmp_path / "nothing", 0.0), saved(tmp_path / "something", 1.0)
    none: dict[str, Path] = {}
    quiet, unmasked = DasOptions(contrast_weight=0.0), DasOptions(contrast_weight=0.0, soft_mask="none")
    runs = [(None, none), (quiet, none), (quiet, nothing), (unmasked, something)]
    cases = [Case(stage, dropout=0.1) for stage in (0, 2)]
    found = ranks(world).run(all_trained, [(case, *run) for case in cases for run in runs])[0]
    for first in (0, len(runs)):
        plain = found[first]
        for other in found[first + 1 : first + len(runs)]:
            assert other.losses == plain.losses
            assert all(torch.equal(other.weights[name], weight) for name, weight in plain.weights.items())


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return saved(tmp_path_factory.mktemp("das") / "importance", 1.0)


@pytest.fixture(scope="module", params=["exact", "lean", "economy", "groups", "general", "some"])
def single(request: pytest.FixtureRequest, ranks, learnt) -> tuple[DasOptions, Outcome]:
    """Trains on one rank with the whole global batch in one pass, which gives the expected results.

    With `groups`, documents are compared in groups of three. In the tests, some groups span two ranks.
    """
    economy: dict[str, Any] = {"contrast_cost": "economy", "economy_fraction": 0.4}
    changes: dict[str, dict[str, Any]] = {
        "economy": economy,
        "groups": {"contrast_documents": 3},
        "general": {"contrast_cost": "exact", "contrast_text": "general", "contrast_documents": 2},
        "some": {**economy, "contrast_text": "general"},
    }
    options: dict[str, Any] = changes.get(request.param, {"contrast_cost": request.param})
    config = DasOptions(**options, contrast_temperature=0.2, injected_dropout=NOTHING)
    case = Case(steps=2, micro_batch=GLOBAL_BATCH, training=FREE)
    return config, ranks(1).run(trained, case, config, learnt)[0]


def cut(config: DasOptions, learnt: dict[str, Path], stage: int, size: int, **training: Any) -> Any:
    """Describes a run that splits the global batch into passes of `size` rows."""
    return Case(stage, 2, size, training={**FREE, **training}), config, learnt


def test_the_result_does_not_depend_on_how_the_global_batch_is_split(
    ranks, learnt, single: tuple[DasOptions, Outcome]
) -> None:
    """Checks several splits over ranks and passes at every ZeRO stage: gradients, weights and report are the same.

    Each rank computes its share in one pass or row by row. Stages 0 and 3 are tested in both ways.
    """
    config, expected = single
    splits = [(0, GLOBAL_BATCH // 2), (0, 1), (1, GLOBAL_BATCH // 2), (2, 1), (3, GLOBAL_BATCH // 2), (3, 1)]
    cases = [cut(config, learnt, stage, size) for stage, size in splits]
    alone = [cut(config, learnt, stage, size) for stage, size in ((0, 2), (3, 1))]
    for rank, outcomes in enumerate([*ranks(2).run(all_trained, cases), ranks(1).run(all_trained, alone)[0]]):
        for found in outcomes:
            torch.testing.assert_close(found.losses, expected.losses, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found.report, expected.report, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-3, atol=1e-5)
            if rank == 0:
                torch.testing.assert_close(found.weights, expected.weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [1, GLOBAL_BATCH // 2])
def test_gradient_checkpointing_changes_nothing(ranks, learnt, single: tuple[DasOptions, Outcome], size: int) -> None:
    """Compares the first step's gradients with and without gradient checkpointing."""
    config, expected = single
    case, *others = cut(config, learnt, 3, size, gradient_checkpointing=True)
    found = ranks(2).run(trained, replace(case, steps=1), *others)[0]
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-3, atol=1e-5)


def test_economy_on_all_documents_is_lean(ranks, learnt) -> None:
    lean, economy = (
        DasOptions(contrast_cost=cost, contrast_temperature=0.2, injected_dropout=NOTHING, economy_fraction=1.0)
        for cost in ("lean", "economy")
    )
    (expected,) = ranks(1).run(all_trained, [(Case(0, 2, GLOBAL_BATCH, training=FREE), lean, learnt)])[0]
    cases = [(Case(stage, 2, GLOBAL_BATCH // 2, training=FREE), economy, learnt) for stage in (0, 3)]
    for found in ranks(2).run(all_trained, cases)[0]:
        assert found.report == pytest.approx(expected.report, rel=1e-4)
        torch.testing.assert_close(found.weights, expected.weights, rtol=1e-3, atol=1e-4)


def test_the_contrast_changes_the_gradients(ranks, learnt, single: tuple[DasOptions, Outcome]) -> None:
    """Checks that the contrast changes gradients. Otherwise, the comparison of splits above would prove nothing."""
    _, expected = single
    case = Case(steps=1, micro_batch=GLOBAL_BATCH, training=FREE)
    quiet = ranks(1).run(trained, case, DasOptions(contrast_weight=0.0), learnt)[0]
    assert quiet.losses[0] == pytest.approx(expected.losses[0], rel=1e-5)
    name = "bert.encoder.layer.0.output.LayerNorm.weight"
    difference = expected.gradients[name] - quiet.gradients[name]
    assert difference.norm() > 0.01 * quiet.gradients[name].norm()


def compared(counts: list[int], most: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Returns the contrast of random documents and its gradients, where rank r holds `counts[r]` documents."""
    views = [torch.randn(sum(counts), 6, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    if len(counts) > 1:
        views = [view.split(counts)[dist.get_rank()] for view in views]
    leaves = [view.clone().requires_grad_() for view in views]
    each = info_nce(*leaves, 0.5, most)
    each.sum().backward()
    return each.detach(), [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("most", [8, 3, 1])
@pytest.mark.parametrize("counts", [[3, 5], [4, 1], [0, 2], [7, 0]])
def test_ranks_may_hold_different_numbers_of_documents(ranks, counts: list[int], most: int) -> None:
    losses, gradients = ranks(1).run(compared, [sum(counts)], most)[0]
    parts = ranks(2).run(compared, counts, most)
    torch.testing.assert_close(torch.cat([each for each, _ in parts]), losses)
    for number, gradient in enumerate(gradients):
        torch.testing.assert_close(torch.cat([found[number] for _, found in parts]), gradient)


@pytest.mark.skipif(not has_bf16, reason="this machine does not multiply in bf16")
def test_bf16_gives_similar_results(ranks, learnt, single: tuple[DasOptions, Outcome]) -> None:
    config, expected = single
    case = Case(2, 2, GLOBAL_BATCH // 2, training=FREE, precision="bf16")
    found = ranks(2).run(trained, case, config, learnt)[0]
    assert found.report == pytest.approx(expected.report, rel=0.05)
    assert found.report["contrast"] != expected.report["contrast"]


def again(config: DasOptions, inputs: dict[str, Path]) -> list[list[float]]:
    """Trains twice in the same way and returns the losses of both runs."""
    return [trained(Case(2, steps=3, dropout=0.1), config, inputs).losses for _ in range(2)]


def test_runs_repeat_exactly(ranks, learnt) -> None:
    for one, other in ranks(2).run(again, DasOptions(), learnt):
        assert one == other
