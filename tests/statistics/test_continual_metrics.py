"""Tests the metrics of sequences against values computed by hand, and against loops over random matrices."""

import numpy as np
import pytest

from adapt.statistics.continual_metrics import (
    final,
    forgetting,
    general_changes,
    learning,
    losses_of,
    scores_of,
    sequence_figures,
)

SCORES = {
    "columns": {"a": 0, "b": 1, "c": 2},
    "rows": [
        {"a": [0.5, 0.5], "b": [0.4], "c": [0.3]},
        {"a": [0.8, 0.6], "b": [0.5]},
        {"a": [0.6], "b": [0.8], "c": [0.2]},
        {"a": [0.65], "b": [0.7], "c": [0.9]},
    ],
}
LOSSES = {
    "columns": {"x": 0, "y": 1, "z": 2, "general": None},
    "rows": [
        {"x": 3.0, "y": 3.2, "z": 3.4, "general": 1.0},
        {"x": 2.0, "y": 3.0, "general": 1.25},
        {"x": 2.5, "y": 2.2, "z": 3.5, "general": 1.5},
        {"x": 2.75, "y": 2.25, "z": 2.4, "general": 1.375},
    ],
}
NONE = {"columns": {}, "rows": [{}, {}, {}, {}]}


def test_figures_are_those_computed_by_hand():
    found = sequence_figures(SCORES, LOSSES)
    assert found == pytest.approx(
        {
            "average": (0.65 + 0.7 + 0.9) / 3,
            "learning": (0.7 + 0.8 + 0.9) / 3,
            "forgetting": (0.05 + 0.1) / 2,
            "forward_transfer": (0.1 - 0.1) / 2,
            "loss_average": (2.75 + 2.25 + 2.4) / 3,
            "loss_learning": (2.0 + 2.2 + 2.4) / 3,
            "loss_forgetting": (0.75 + 0.05) / 2,
            "loss_forward_transfer": (0.2 - 0.1) / 2,
            "general_change": 0.375,
        }
    )
    assert general_changes(losses_of(LOSSES)) == [0.25, 0.5, 0.375]


def test_figures_equal_a_loop_over_tasks_for_any_number_of_domains():
    rng = np.random.default_rng(0)
    for domains in range(2, 7):
        owners = [*range(domains), *rng.integers(0, domains, 3)]  # some domains have several tasks
        matrix = rng.random((domains + 1, len(owners), 2))  # two fine-tuning seeds
        found = {
            "columns": {f"t{task}": int(owner) for task, owner in enumerate(owners)},
            "rows": [{f"t{task}": list(cell) for task, cell in enumerate(row)} for row in matrix],
        }
        lost, known, ahead = [], [], []
        for task, owner in enumerate(owners):
            learnt = matrix[owner + 1, task].mean()
            known.append(learnt)
            if owner < domains - 1:
                lost.append(learnt - matrix[-1, task].mean())
            if owner > 0:
                ahead.append(matrix[owner, task].mean() - matrix[0, task].mean())
        figures = sequence_figures(found, NONE)
        assert figures["forgetting"] == pytest.approx(sum(lost) / len(lost))
        assert figures["learning"] == pytest.approx(np.mean(known))
        assert figures["forward_transfer"] == pytest.approx(np.mean(ahead))
        assert figures["average"] == pytest.approx(matrix[-1].mean())


def test_forgetting_has_the_same_sign_for_losses_and_scores():
    falling = {"columns": {"a": 0, "b": 1}, "rows": [{}, {"a": [0.9]}, {"a": [0.4], "b": [0.9]}]}
    rising = {"columns": {"a": 0, "b": 1}, "rows": [{}, {"a": 0.4}, {"a": 0.9, "b": 0.4}]}
    assert forgetting(scores_of(falling)) == forgetting(losses_of(rising)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("row", "gone", "undefined"),
    [
        (0, "b", {"forward_transfer"}),
        (1, "b", {"forward_transfer"}),
        (1, "a", {"learning", "forgetting"}),
        (3, "c", {"average", "learning"}),
        (3, "a", {"average", "forgetting"}),
        (2, "a", set()),
    ],
)
def test_figures_that_need_a_missing_cell_are_none(row, gone, undefined):
    rows = [
        {task: cell for task, cell in each.items() if (place, task) != (row, gone)}
        for place, each in enumerate(SCORES["rows"])
    ]
    found = sequence_figures(SCORES | {"rows": rows}, LOSSES)
    assert {name for name, value in found.items() if value is None} == undefined


def test_one_domain_has_no_forgetting_and_no_transfer():
    scores = {"columns": {"a": 0}, "rows": [{}, {"a": [0.7]}]}
    losses = {"columns": {"x": 0}, "rows": [{"x": 3.0}, {"x": 2.0}]}
    found = sequence_figures(scores, losses)
    assert (found["average"], found["learning"], found["loss_average"]) == (0.7, 0.7, 2.0)
    assert [name for name, value in found.items() if value is not None and "average" not in name] == [
        "learning",
        "loss_learning",
    ]


def test_separate_models_have_averages_but_no_forgetting():
    rows = [SCORES["rows"][0], {"a": [0.8]}, {"b": [0.7]}, {"c": [0.6]}]
    losses = [LOSSES["rows"][0], {"x": 2.0, "general": 1.1}, {"y": 2.2, "general": 1.3}, {"z": 2.4, "general": 1.2}]
    found = sequence_figures(SCORES | {"rows": rows}, LOSSES | {"rows": losses}, "separate")
    known = {name: value for name, value in found.items() if value is not None}
    assert known == pytest.approx(
        {"average": 0.7, "learning": 0.7, "loss_average": 2.2, "loss_learning": 2.2, "general_change": 0.2}
    )
    assert final(scores_of(SCORES | {"rows": rows}), "separate") == {"a": 0.8, "b": 0.7, "c": 0.6}


def test_a_joint_model_only_has_averages():
    scores, losses = ([each["rows"][0], {}, {}, each["rows"][-1]] for each in (SCORES, LOSSES))
    found = sequence_figures(SCORES | {"rows": scores}, LOSSES | {"rows": losses}, "joint")
    known = {name: value for name, value in found.items() if value is not None}
    assert known == pytest.approx({"average": 0.75, "loss_average": 7.4 / 3, "general_change": 0.375})


def test_a_domain_without_held_out_text_is_left_out():
    rows = [{name: cell if name != "y" else None for name, cell in row.items()} for row in LOSSES["rows"]]
    found = losses_of(LOSSES | {"rows": rows})
    assert list(found.columns) == ["x", "z", "general"]
    assert learning(found) == pytest.approx(2.2)


def test_without_tasks_and_general_text_their_figures_are_none():
    losses = {"columns": {"x": 0, "y": 1}, "rows": [{"x": 3.0, "y": 3.0}, {"x": 2.0}, {"x": 2.5, "y": 2.0}]}
    found = sequence_figures(NONE | {"rows": [{}, {}, {}]}, losses)
    assert {name for name, value in found.items() if value is not None} == {
        "loss_average",
        "loss_learning",
        "loss_forgetting",
    }
    assert general_changes(losses_of(losses)) == [None, None]
