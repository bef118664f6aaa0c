"""Tests DAS with `contrast_text: general`: documents of the domain have the objective's loss but no contrast."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adapt.config import Config, MixtureConfig
from adapt.method.base import Setting
from adapt.method.das import contrast as module
from adapt.method.das.contrast import Contrast
from adapt.method.das.method import Das, DasOptions
from adapt.model.layers import Gates
from adapt.model.sparse_prediction import loss_at
from adapt.objective.objective import CausalLanguageModelling, Corrupted
from adapt.support.errors import ConfigError
from adapt.train.capacity.micro_batch import trial_pass
from tests.job.worlds import keyed_model
from tests.method.das.test_contrast import COSTS, LENGTHS, config, gradients, importance, passed, rows, separately
from tests.model.families import documents, ready

pytestmark = pytest.mark.heavy

TEXTS = documents(*LENGTHS, 3, 8, 2, 11, 1)
"""Ten documents that fill five rows with three, two, two, one and two documents."""
FIRST = 100
NUMBERS = 4, 107, FIRST, 99, 120
GENERAL = 3, 4, 5, 6, 8, 9
"""Indices of the general documents in TEXTS. These documents are in rows whose number is FIRST (100) or more."""


def mixed(numbers: tuple[int, ...] = NUMBERS) -> Corrupted:
    return replace(rows(TEXTS), rows=torch.tensor(numbers))


def contrast_of(model: Any, known: bool = True, **changes: Any) -> Contrast:
    gates, values = (Gates(model), importance(model)) if known else (None, None)
    return Contrast(config(contrast_text="general", **changes), gates, values, first_general=FIRST)


@pytest.mark.parametrize("size", [100, 2, 1])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("cost", "taken"), [("exact", GENERAL), ("lean", GENERAL), ("economy", (3, 5, 8))])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_only_general_documents_are_compared(
    family: str, cost: Any, taken: tuple[int, ...], known: bool, size: int
) -> None:
    """Checks several divisions of a step into passes. In some of them, a pass contains no general text.

    Cost `economy` compares half of the general documents here.
    """
    model, seen = ready(family), mixed()
    loss, each, found = passed(
        contrast_of(model, known, contrast_cost=cost, economy_fraction=0.5), model, *seen.split(size)
    )

    model = ready(family)
    gates, values = (Gates(model), importance(model)) if known else (None, None)
    expected = separately(model, [TEXTS[number] for number in taken], cost, values, gates)
    expected_loss = loss_at(model, seen.packed(), seen.asked(), seen.targets)
    torch.testing.assert_close(each, expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-5, atol=1e-4)
    wanted = gradients(model, expected_loss + expected.mean())
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


def test_the_contrast_differs_from_that_of_all_documents() -> None:
    model, seen = ready("bert"), mixed()
    _, some, _ = passed(contrast_of(model), model, seen)
    _, every, _ = passed(Contrast(config(), Gates(model), importance(model)), model, seen)
    assert (len(some), len(every)) == (len(GENERAL), len(TEXTS))
    # the losses differ, because each document is compared with fewer documents
    assert not torch.isclose(some, every[list(GENERAL)]).any()


@pytest.mark.parametrize("numbers", [NUMBERS, (0, 1, 2, 3, 4), (100, 101, 102, 103, 104)])
@pytest.mark.parametrize("cost", COSTS)
def test_micro_batches_change_nothing_in_groups(cost: Any, numbers: tuple[int, ...]) -> None:
    found = []
    for size in (100, 3, 1):
        model, noted = ready("bert"), []
        contrast = contrast_of(model, contrast_cost=cost, economy_fraction=0.7, contrast_documents=3)
        for loss, added, each in contrast.losses(model, mixed(numbers).split(size)):
            (loss if added is None else loss + added).backward()
            noted.append(each)
        found.append((torch.cat(noted), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [100, 2])
@pytest.mark.parametrize("cost", COSTS)
def test_a_step_without_general_text_is_plain_training(cost: Any, size: int) -> None:
    model, total = ready("bert"), torch.zeros(())
    seen = mixed((0, 1, 2, 3, FIRST - 1))
    for loss, added, each in contrast_of(model, contrast_cost=cost).losses(model, seen.split(size)):
        assert added is None
        assert each.shape == (0,)
        loss.backward()
        total += loss.detach()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    expected = loss_at(model, seen.packed(), seen.asked(), seen.targets)
    torch.testing.assert_close(total, expected.detach(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found, gradients(model, expected), rtol=1e-4, atol=1e-5)


def das(model: Any, first_general: int | None = FIRST) -> Das:
    method = Das(DasOptions(contrast_text="general"))
    method.prepare_model(model, Setting(first_general=first_general))
    return method


def losses(method: Das, model: Any, seen: Corrupted) -> list[Tensor | None]:
    return [extra for _, extra in method.losses(model, [seen], CausalLanguageModelling(), 0, 1)]


def test_the_report_averages_the_compared_documents() -> None:
    model = ready("bert")
    method = das(model)
    assert losses(method, model, mixed((0, 1, 2, 3, 4))) == [None]
    assert method.report()["contrast"] == 0
    (extra,) = losses(method, model, mixed())
    assert losses(method, model, mixed((0, 1, 2, 3, 4))) == [None]
    assert extra is not None
    assert method.report()["contrast"] == pytest.approx(extra.item(), rel=1e-5)


def test_nothing_is_compared_without_general_text() -> None:
    model = ready("bert")
    assert losses(das(model, None), model, mixed()) == [None]


def test_a_trial_of_the_memory_use_compares_all_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the trial pass compares all documents. A pass of only general text needs the most memory."""
    counts, compare = [], module.info_nce

    def recorded(first: Tensor, *arguments: Any) -> Tensor:
        counts.append(len(first))
        return compare(first, *arguments)

    monkeypatch.setattr(module, "info_nce", recorded)
    model = ready("gpt2").train()
    trial_pass(model, CausalLanguageModelling(), das(model), 3, 8, "fp32")
    assert counts == [3]


@pytest.mark.parametrize(
    ("mixture", "said", "fix"),
    [
        ({}, "no general text is replayed", "name general text in mixture.replay_paths"),
        ({"replay_paths": "a", "replay_fraction": 0.0}, "mixture.replay_fraction 0", "set mixture.replay_fraction"),
        ({"replay_paths": "a", "replay_fraction": 0.0, "replay_last": 0.0}, "mixture.replay_fraction 0", "above 0"),
    ],
)
def test_it_is_refused_without_replayed_general_text(tmp_path: Path, mixture: Any, said: str, fix: str) -> None:
    model, asked = keyed_model(tmp_path / "model"), Config(mixture=MixtureConfig(**mixture))
    with pytest.raises(ConfigError, match=rf"das\.contrast_text is general, but .*{said}") as caught:
        Das(DasOptions(contrast_text="general")).check(asked, model)
    assert fix in caught.value.fix
    assert "das.contrast_text to all" in caught.value.fix
    Das(DasOptions()).check(asked, model)
    # with weight 0, there is no contrast
    Das(DasOptions(contrast_text="general", contrast_weight=0.0)).check(asked, model)


@pytest.mark.parametrize("mixture", [{}, {"replay_fraction": 0.0, "replay_last": 0.2}, {"replay_last": 0.0}])
def test_any_positive_share_of_general_text_is_accepted(tmp_path: Path, mixture: dict[str, float]) -> None:
    asked = Config(mixture=MixtureConfig(replay_paths="a", **mixture))
    Das(DasOptions(contrast_text="general")).check(asked, keyed_model(tmp_path / "model"))


def test_contrast_text_enters_the_key_unless_it_is_as_published() -> None:
    published, general = (Das(DasOptions(contrast_text=text)).settings() for text in ("all", "general"))
    assert "contrast_text" not in published
    assert general == {**published, "contrast_text": "general"}
    assert "contrast_text" not in Das(DasOptions(contrast_text="general", contrast_weight=0.0)).settings()
