"""Tests of a sequence's matrices of losses and scores, and of its losses when texts are routed without domain ids."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import Config, MergeConfig, MethodConfig, TaskConfig
from adapt.evaluate.measurements import TextLoss
from adapt.stage.domain_sequence import Sequence
from adapt.stage.finetuning import Finetune
from adapt.stage.sequence_matrices import LossMatrix, ScoreMatrix, loss_matrix, route_table, score_matrix
from tests.job.worlds import splits
from tests.stage.done import record_of
from tests.stage.measured import EXPORTED, built, done, losses, two_domains


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return two_domains(tmp_path, monkeypatch)


def losses_of(stage: Sequence, *others: object) -> LossMatrix:
    return loss_matrix(stage.order, stage.before, stage.steps, done(stage, *others))  # type: ignore[arg-type]


def test_losses_are_in_the_rows_and_columns_of_their_measurements(config: Config) -> None:
    assert losses_of(built(config)) == LossMatrix(
        {"cs": 0, "bio": 1, "general": None},
        [
            {"cs": 5.0, "bio": 6.0, "general": 4.0},
            {"cs": 3.0, "bio": 5.8, "general": 4.1},
            {"cs": 3.6, "bio": 3.5, "general": 4.4},
        ],
        {"cs": 99, "bio": 99, "general": 99},
    )


def test_missing_general_text_has_no_column(config: Config) -> None:
    stage = built(replace(config, evaluation=replace(config.evaluation, general_paths=[])))
    exports = [(step.export, EXPORTED[step.learnt - 1]) for step in stage.steps if step.export]
    nothing = [record_of(export, losses={"domain": changes["domain"]}) for export, changes in exports]
    assert losses_of(stage, *nothing).columns == {"cs": 0, "bio": 1}


def test_too_little_general_text_has_no_column(config: Config) -> None:
    """The evaluations before training have no loss on general text, so the matrix has no column for general text."""
    stage = built(config)
    little = [record_of(each, texts=losses(domain=5.0, general=None)) for each in stage.before.values()]
    assert losses_of(stage, *little).columns == {"cs": 0, "bio": 1}


def test_a_domain_with_too_little_held_out_text_has_no_column(config: Config) -> None:
    stage = built(config)
    export = stage.steps[0].export
    assert export
    little = record_of(export, losses={"general": EXPORTED[0]["general"]})
    found = losses_of(stage, little)
    assert found.columns == {"bio": 1, "general": None}
    assert [set(row) for row in found.rows] == [{"bio", "general"}] * 3


def test_separate_models_have_a_row_for_their_own_domain(config: Config) -> None:
    stage = built(replace(config, method=MethodConfig("plain")), mode="separate")
    assert losses_of(stage).rows[1:] == [{"cs": 3.0, "general": 4.1}, {"bio": 3.5, "general": 4.4}]


def test_a_joint_model_has_losses_on_each_domain(config: Config) -> None:
    stage = built(replace(config, method=MethodConfig("plain")), mode="joint")
    assert stage.steps[0].others
    measured = record_of(stage.steps[0].others, texts=losses(cs=3.1, bio=3.2))
    assert losses_of(stage, measured).rows[1:] == [{}, {"cs": 3.1, "bio": 3.2, "general": 4.4}]


def test_separate_and_merged_domains_have_the_losses_of_the_merges(config: Config) -> None:
    stage = built(replace(config, method=MethodConfig("merge"), merge=MergeConfig("ties")))
    first, second = (step.others for step in stage.steps)
    assert first
    assert second
    measured = [
        record_of(first, texts=losses(cs=3.1, general=4.2)),
        record_of(second, texts=losses(cs=3.3, bio=3.6, general=4.3)),
    ]
    assert losses_of(stage, *measured) == LossMatrix(
        {"cs": 0, "bio": 1, "general": None},
        [
            {"cs": 5.0, "bio": 6.0, "general": 4.0},
            {"cs": 3.1, "general": 4.2},
            {"cs": 3.3, "bio": 3.6, "general": 4.3},
        ],
        {"cs": 99, "bio": 99, "general": 99},
    )


def test_scores_are_in_the_rows_of_their_models_by_seed(config: Config) -> None:
    tasks = [TaskConfig(name="topics", domain="cs", metric="accuracy", **splits()), TaskConfig(name="bio", **splits())]
    stage = built(replace(config, tasks=tasks), forward_transfer=True)

    def scored(runs: dict[str, tuple[Finetune, ...]], learnt: int) -> list[object]:
        return [
            record_of(run, metric="macro_f1" if task == "bio" else "accuracy", score=learnt + run.seed / 10)
            for task, some in runs.items()
            for run in some
        ]

    rows = {0: stage.untaught, **{step.learnt: step.runs for step in stage.steps}}
    found = [record for learnt, runs in rows.items() for record in scored(dict(runs), learnt)]
    matrix = score_matrix(stage.order, stage.owners, stage.untaught, stage.steps, done(stage, *found))  # type: ignore[arg-type]
    assert matrix == ScoreMatrix(
        {"topics": 0, "bio": 1},
        {"topics": "accuracy", "bio": "macro_f1"},
        [{name: [after, after + 0.1] for name in ("topics", "bio")} for after in (0.0, 1.0, 2.0)],
    )


def test_untested_tasks_have_no_score(config: Config) -> None:
    stage = built(replace(config, tasks=[TaskConfig(name="bio", **splits())]))
    matrix = score_matrix(stage.order, stage.owners, stage.untaught, stage.steps, done(stage))
    assert [set(row) for row in matrix.rows] == [set(), set(), {"bio"}]


def text(loss: float, routed: float, right: float | None) -> TextLoss:
    return TextLoss(loss, 9, 99, 0, routed, right)


def test_routes_have_a_row_per_model_and_domain_with_parts(config: Config) -> None:
    stage = built(replace(config, method=MethodConfig("adapters")))
    first, second = stage.steps
    assert first.own
    assert second.own
    assert second.others
    records = [
        record_of(first.own, texts={"domain": text(3.0, 3.0, 1.0), "general": text(4.0, 4.0, None)}),
        record_of(second.own, texts={"domain": text(2.0, 2.25, 0.875), "general": text(4.0, 4.0, None)}),
        record_of(second.others, texts={"cs": text(3.0, 3.5, 0.5)}),
    ]
    table = route_table(stage.steps, done(stage, *records))
    assert table is not None
    assert table.rows == {
        "after 1: cs": ["3.000", "3.000", "100.0%"],
        "after 2: cs": ["3.000", "3.500", "50.0%"],
        "after 2: bio": ["2.000", "2.250", "87.5%"],
    }


def test_models_with_experts_have_a_loss_of_their_mixture(config: Config) -> None:
    stage = built(replace(config, method=MethodConfig("demix")))
    first, second = stage.steps
    assert first.own
    assert second.own
    assert second.others
    mixed = replace(text(3.0, 3.25, 0.5), mixed=2.875)
    records = [record_of(each, texts={"domain": mixed}) for each in (first.own, second.own)]
    table = route_table(stage.steps, done(stage, *records, record_of(second.others, texts={"cs": mixed})))
    assert table is not None
    assert table.columns[-1] == "loss, mixture"
    assert table.rows["after 2: cs"] == ["3.000", "3.250", "50.0%", "2.875"]


def test_methods_without_parts_have_no_table_of_routes(config: Config) -> None:
    stage = built(config)
    assert route_table(stage.steps, done(stage)) is None
