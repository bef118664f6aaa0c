"""The record of a sequence, from records as the stages leave them."""

from pathlib import Path
from typing import Any

import pytest
from adapt.evaluate.sequence import summarize

from adapt.method.das.options import DasOptions
from adapt.runner import Record

IDENTITY = {
    "order": ["a", "b"],
    "mode": "continual",
    "method": "das",
    "seed": 0,
    "finetune_seeds": [0],
    "tasks": {},
}


def record(stage: str, name: str, metrics: dict[str, Any], cost: float | None = None) -> Record:
    costs = {"device_seconds": 10.0, "device_hours": 10 / 3600, "cost": cost}
    return Record(stage, name, f"{stage} {name}", 1, {}, {}, metrics, costs, {}, {}, {}, "", Path(stage) / name)


def done(**changes: dict[str, Any]) -> dict[str, Record]:
    """Of two domains, each one learnt."""
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "loss of a": ("evaluate", {"domain_loss": 5.0, "general_loss": 4.0}),
        "loss of b": ("evaluate", {"domain_loss": 6.0, "general_loss": 4.0}),
        "export 1": ("export", {"heldout_loss_before": 5.0, "heldout_loss_after": 3.0, "general_loss_after": 4.1}),
        "export 2": ("export", {"heldout_loss_before": 5.8, "heldout_loss_after": 3.5, "general_loss_after": 4.4}),
        "losses 2": ("evaluate", {"a_loss": 3.6}),
    }
    return {name: record(stage, name, {**values, **changes.get(name, {})}) for name, (stage, values) in found.items()}


def test_losses_stand_where_they_were_measured() -> None:
    metrics = summarize(IDENTITY, DasOptions(), done()).metrics
    assert metrics["losses"] == {
        "columns": {"a": 0, "b": 1, "general": None},
        "rows": [
            {"a": 5.0, "b": 6.0, "general": 4.0},
            {"a": 3.0, "b": 5.8, "general": 4.1},
            {"a": 3.6, "b": 3.5, "general": 4.4},
        ],
    }
    assert metrics["loss_forgetting"] == pytest.approx(0.6)
    assert metrics["loss_forward_transfer"] == pytest.approx(0.2)
    assert metrics["general_change"] == pytest.approx(0.4)
    assert metrics["warnings"] == []
    assert metrics["models"] == {"a": "export/export 1", "b": "export/export 2"}


@pytest.mark.parametrize("general", [{}, {"general_loss": None}])
def test_general_text_that_is_not_there_or_too_little(general: dict[str, Any]) -> None:
    """Exports leave out what has a single document."""
    found = done()
    for name in ("loss of a", "loss of b"):
        found[name] = record("evaluate", name, {"domain_loss": 5.0, **general})
    for name in ("export 1", "export 2"):
        del found[name].metrics["general_loss_after"]
    assert "general" not in summarize(IDENTITY, DasOptions(), found).metrics["losses"]["columns"]
    assert summarize(IDENTITY, DasOptions(), found).metrics["general_change"] is None


def test_a_domain_with_too_little_held_out_text_is_left_out_with_a_word() -> None:
    nothing = {"heldout_loss_before": None, "heldout_loss_after": None}
    metrics = summarize(IDENTITY, DasOptions(), done(**{"export 1": nothing})).metrics
    assert metrics["losses"]["columns"] == {"b": 1, "general": None}
    assert [set(row) for row in metrics["losses"]["rows"]] == [{"b", "general"}] * 3
    assert metrics["loss_learning"] == 3.5
    assert metrics["warnings"] == ["a has fewer than two held-out documents, so its loss is left out"]


def test_plasticity_is_numbered_by_the_domains_before_it() -> None:
    low = {"plasticity": {"head": [0.05], "inner": [0.5], "output": [0.5]}}
    found = {**done(), "importance 1": record("importance", "importance 1", low)}
    metrics = summarize(IDENTITY, DasOptions(), found).metrics
    assert metrics["plasticity"] == [low["plasticity"]]
    assert [each.split(",")[0] for each in metrics["warnings"]] == ["after 1 domain"]
    floored = summarize(IDENTITY, DasOptions(plasticity_floor=0.2), found).metrics
    assert floored["plasticity"][0]["head"] == [0.2]
    assert floored["warnings"] == []
    undone = summarize(IDENTITY, DasOptions(soft_mask="gradient"), found).metrics  # by Adam
    assert (undone["plasticity"], undone["warnings"]) == ([low["plasticity"]], [])
    unmasked = summarize(IDENTITY, DasOptions(soft_mask="none"), found).metrics
    assert (unmasked["plasticity"], unmasked["warnings"]) == ([], [])


def test_what_was_known_before_is_warned_of_first() -> None:
    nothing = {"heldout_loss_before": None, "heldout_loss_after": None}
    warnings = summarize(IDENTITY, DasOptions(), done(**{"export 1": nothing}), ["known"]).metrics["warnings"]
    assert (warnings[0], len(warnings)) == ("known", 2)


def test_all_at_once_is_one_model() -> None:
    found = done()
    identity = {**IDENTITY, "mode": "joint"}
    found = {
        **{name: each for name, each in found.items() if name.startswith("loss of")},
        "export 2": found["export 2"],
        "losses 2": record("evaluate", "losses 2", {"a_loss": 3.1, "b_loss": 3.2}),
    }
    metrics = summarize(identity, DasOptions(), found).metrics
    assert metrics["models"] == {"a, b": "export/export 2"}
    assert metrics["losses"]["rows"][1:] == [{}, {"a": 3.1, "b": 3.2, "general": 4.4}]
    assert metrics["loss_average"] == pytest.approx(3.15)


@pytest.mark.parametrize(("price", "expected"), [(None, None), (2.0, 4.0)])
def test_what_it_cost(price: float | None, expected: float | None) -> None:
    found = {
        **done(),
        **{f"export {n}": record("export", f"export {n}", done()[f"export {n}"].metrics, price) for n in (1, 2)},
    }
    cost = summarize(IDENTITY, DasOptions(), found).cost
    assert (cost["device_seconds"], cost["cost"]) == (20.0, expected)
