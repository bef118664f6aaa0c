"""Tests the record of a domain sequence: metrics, reports of the method, warnings, overlap, cost and display."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, MethodConfig, TaskConfig
from adapt.evaluate.measurements import LossChange
from adapt.method.das.method import DasOptions
from adapt.runner import Finished, Record
from adapt.runner.record import plain_values
from adapt.show.blocks import NONE
from adapt.stage.domain_sequence import Sequence, SequenceResult
from tests.job.worlds import splits
from tests.runner.made import made_up
from tests.runner.test_record import record
from tests.show.report.fake_sequences import ORDERS, sequence
from tests.show.report.fake_studies import loss_change
from tests.show.shown import show_result
from tests.stage.done import record_of
from tests.stage.measured import EXPORTED, built, done, losses, two_domains
from tests.test_summary import row


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return two_domains(tmp_path, monkeypatch)


def result(stage: Sequence, *others: Record) -> SequenceResult:
    return stage.run(Path(), done(stage, *others)).result


def with_das(config: Config, **options: Any) -> Config:
    return replace(config, method_options=DasOptions(**options))


def test_figures_are_computed_from_the_matrices(config: Config) -> None:
    found = result(built(config))
    assert found.losses.rows[2] == {"cs": 3.6, "bio": 3.5, "general": 4.4}
    assert found.loss_forgetting == pytest.approx(0.6)
    assert found.loss_forward_transfer == pytest.approx(0.2)
    assert found.general_change == pytest.approx(0.4)
    assert found.average is None  # no task, so no average score
    assert found.warnings == []
    assert (found.order, found.mode, found.method, found.seed) == (["cs", "bio"], "continual", "das", 0)


def test_the_last_model_is_compared_with_the_base_model(config: Config) -> None:
    found = result(built(config))
    # The loss on cs is measured after the last domain. The last model's export has the losses on bio and general text.
    assert {name: round(of.value, 6) for name, of in found.changes.items()} == {
        "cs": -1.4,
        "bio": -2.5,
        "general": 0.4,
    }
    assert found.verdict().sentence() == (
        "Verdict: better than the model it started from on cs and bio, but worse on general text, beyond chance."
    )


def test_a_domain_that_its_own_training_made_worse_is_warned_of(config: Config) -> None:
    stage = built(config)
    own = loss_change("domain", 5.0, 5.5, overlap=0)
    assert stage.steps[0].export
    worse = record_of(stage.steps[0].export, {"device_seconds": 1.0}, losses={"domain": own})
    assert "Held-out loss on cs rose from 5.00 to 5.50" in result(stage, worse).warnings[0]
    assert "made the model worse on this text" in result(stage, worse).warnings[0]


def test_models_are_named_by_the_domain_learned_last(config: Config) -> None:
    stage = built(config)
    cs, bio = (str(Path("export") / step.export.name) for step in stage.steps)
    found = result(stage)
    assert found.models == {"cs": cs, "bio": bio}
    assert found.model == bio
    joint = built(replace(config, method=MethodConfig("plain")), mode="joint")
    assert list(result(joint).models) == ["cs, bio"]


def test_a_mean_over_domains_learned_at_once(config: Config) -> None:
    stage = built(replace(config, method=MethodConfig("plain")), mode="joint")
    assert stage.steps[0].others
    measured = record_of(stage.steps[0].others, texts=losses(cs=3.1, bio=3.2))
    assert result(stage, measured).loss_average == pytest.approx(3.15)


def little(stage: Sequence) -> Record:
    """Returns an export record without a loss on the first domain, as if too little of its text were held out."""
    return record_of(stage.steps[0].export, losses={"general": EXPORTED[0]["general"]})


def test_a_domain_with_too_little_held_out_text_is_omitted_with_a_warning(config: Config) -> None:
    stage = built(config)
    found = result(stage, little(stage))
    assert found.loss_learning == 3.5
    assert found.warnings == ["cs has fewer than two held-out documents, so its loss is left out"]


@pytest.mark.parametrize(("documents", "said"), [(9, True), (29, True), (30, False)])
def test_few_held_out_documents_are_warned_of(config: Config, documents: int, said: bool) -> None:
    stage = built(config)
    assert stage.order[0] == "cs"
    found = result(stage, record_of(stage.before["cs"], texts=losses(documents=documents, domain=5.0, general=4.0)))
    assert found.losses.documents == {"cs": documents, "bio": 99, "general": documents}
    warning = (
        f"fewer than 30 documents are held out, so that losses are unreliable: cs {documents}, general {documents};"
        " raise corpus.heldout_fraction, or add text to evaluation.general_paths"
    )
    assert found.warnings == ([warning] if said else [])
    table = found.losses.table(stage.order, "continual")
    assert table
    assert f"Held-out documents: cs {documents}, bio 99, general {documents}." in table.note


# --- reports of the method


def importance(stage: Sequence, after: int, head: float = 0.05, share: float | None = None) -> Record:
    """Returns the record of the importance that is measured after `after` domains."""
    past = [*(step.past for step in stage.steps), stage.past]
    left = {"head": [head], "inner": [0.5], "output": [0.5]}
    return record_of(past[after]["importance"], plasticity=left, embeddings_share=share)


def all_of(stage: Sequence, head: float = 0.05, share: float | None = None) -> list[Record]:
    return [importance(stage, 0, 0.5, share), importance(stage, 1, head), importance(stage, 2, 0.5)]


def test_reports_of_the_method_are_numbered_by_earlier_domains(config: Config) -> None:
    stage = built(config)
    found = result(stage, *all_of(stage))
    (table,) = found.tables
    assert list(table["rows"]) == ["after 0 domains", "after 1 domain", "after 2 domains"]
    assert table["rows"]["after 1 domain"][0] == "0.05\n0.05 to 0.05"
    assert table["columns"][0] == "attention heads"
    assert [warning.split(",")[0] for warning in found.warnings] == ["after 1 domain"]


@pytest.mark.parametrize(
    ("options", "head", "warnings"),
    [
        ({"plasticity_floor": 0.2}, "0.20\n0.20 to 0.20", 0),
        ({"soft_mask": "gradient"}, "0.05\n0.05 to 0.05", 0),  # no warning, because Adam cancels a scaling of gradients
        ({"soft_mask": "none"}, None, 0),
    ],
)
def test_reports_of_the_method_are_shown_unchanged(
    config: Config, options: dict[str, Any], head: str | None, warnings: int
) -> None:
    stage = built(with_das(config, **options))
    found = result(stage, *all_of(stage))
    assert len(found.warnings) == warnings
    assert [table["rows"]["after 1 domain"][0] for table in found.tables] == ([head] if head else [])


@pytest.mark.parametrize(
    ("share", "options", "warns"),
    [
        (0.88, {}, True),
        (0.31, {}, False),
        (None, {}, False),
        (0.88, {"embeddings": "frequency"}, False),
        (0.88, {"soft_mask": "none"}, False),
    ],
)
def test_a_model_that_is_mostly_embeddings_is_warned_of(
    config: Config, share: float | None, options: dict[str, Any], warns: bool
) -> None:
    stage = built(with_das(config, **options))
    found = result(stage, *all_of(stage, head=0.5, share=share))
    assert [each.split(",")[0] for each in found.warnings] == ["88% of the parameters are embeddings"] * warns


def test_warnings_of_domains_precede_those_of_the_method(config: Config) -> None:
    stage = built(config)
    found = result(stage, little(stage), *all_of(stage))
    assert [warning.split()[0] for warning in found.warnings] == ["cs", "after"]


def test_a_method_without_stages_has_no_reports(config: Config) -> None:
    found = result(built(replace(config, method=MethodConfig("plain"))))
    assert (found.tables, found.warnings) == ([], [])


# --- overlap and cost


def overlapping(**documents: int | None) -> dict[str, LossChange]:
    """Returns the losses of the first export, with the given numbers of held-out documents that were trained on."""
    return {text: replace(change, overlap=documents[text]) for text, change in EXPORTED[0].items()}


def test_overlap_is_summed_and_unknown_if_one_part_is(config: Config) -> None:
    stage = built(config)
    assert result(stage).overlap == 0
    export, others = stage.steps[0].export, stage.steps[1].others
    assert others
    exported = record_of(export, losses=overlapping(domain=2, general=4))
    assert result(stage, exported, record_of(others, texts=losses(3, cs=3.6))).overlap == 9
    assert result(stage, exported, record_of(others, texts=losses(None, cs=3.6))).overlap is None
    assert result(stage, record_of(export, losses=overlapping(domain=0, general=None))).overlap is None


def test_without_general_text_overlap_is_that_of_domains(config: Config) -> None:
    stage = built(replace(config, evaluation=replace(config.evaluation, general_paths=[])))
    exports = [record_of(step.export, losses={"domain": EXPORTED[step.learnt - 1]["domain"]}) for step in stage.steps]
    assert result(stage, *exports).overlap == 0


@pytest.mark.parametrize(("price", "expected"), [(None, None), (2.0, 4.0)])
def test_the_cost_is_the_sum_of_all_stages(config: Config, price: float | None, expected: float | None) -> None:
    stage = built(replace(config, method=MethodConfig("plain")))
    cost = stage.run(Path(), done(stage, price=price)).cost
    assert (cost["device_seconds"], cost["cost"]) == (20.0, expected)


def test_every_stage_is_counted_once_in_the_cost(config: Config) -> None:
    """The importance after one domain is also the importance before the next domain.

    The cost of this measurement must be counted only once.
    """
    stage = built(replace(config, tasks=[TaskConfig(name="bio", **splits())]))
    cost = stage.run(Path(), done(stage, price=1.0)).cost
    assert cost["device_seconds"] == 10.0 * (2 + 3 + 2)
    assert cost["device_hours"] == pytest.approx(70 / 3600)
    assert cost["cost"] == 7.0


def shown(capsys: pytest.CaptureFixture[str], folder: Path, **metrics: Any) -> str:
    made = sequence(ORDERS["a"], metrics.pop("mode", "continual"), 0, 0.01, metrics.pop("method", "das"))
    made = plain_values(made_up(SequenceResult, **(made | metrics)))
    show_result(Finished(record(folder, name="[demo] x", metrics=made), SequenceResult))
    out, err = capsys.readouterr()
    assert out == ""  # nothing is printed to stdout, which is for programs
    return err


def test_every_model_has_a_row_of_scores_and_of_losses(capsys, tmp_path):
    scores = {
        "columns": {"helpful": 3, "acl_arc": 0, "cs": 0},
        "metric": {},
        "rows": [{}, {"acl_arc": [0.7, 0.72], "cs": [0.5]}, {}, {}, {"acl_arc": [0.6], "helpful": [0.805]}],
    }
    text = shown(capsys, tmp_path, scores=scores)
    assert text.startswith(
        "Learnt 4 domains with method das, in the order cs, biomed, news, reviews: mean held-out loss"
    )
    assert row(text.replace("┃", "│"), "model", "acl_arc (cs)", "cs", "helpful (reviews)")
    assert row(text, "after cs", "71.0 ± 1.4", "50.0", NONE)
    assert row(text, "after reviews", "60.0", NONE, "80.5")
    assert not row(text, "after news", NONE, NONE, NONE)  # this row is left out, because no task was run on this model
    assert row(text, "before all", "2.400", "2.500", "2.600", "2.700", "1.300")
    assert "Model: /runs/export/model\n" in text


def test_figures_are_shown_with_the_meaning_of_their_sign(capsys, tmp_path):
    text = shown(capsys, tmp_path, average=0.712, forgetting=-0.012, loss_forgetting=0.0314, general_change=None)
    assert row(text, "score at the end", "71.2 points", "mean test score of all tasks; higher is better")
    assert row(text, "forgetting", "-1.2 points", "mean fall of a task's score after its domain was learnt")
    assert row(text, "loss forgetting", "+0.031 nats per token", "mean rise of a domain's loss after it was learnt")
    assert "Mean test score at the end is 71.2 points of 100.\n" in text
    assert "Loss on earlier domains rose by 0.03 nats per token on average while later ones were learnt.\n" in text
    assert "general text" not in text


def test_reports_of_the_method_and_the_first_warnings_are_shown(capsys, tmp_path):
    noted = {
        "title": "remaining plasticity",
        "columns": ["heads", "inner"],
        "rows": {"after 1 domain": ["0.38\n0.25 to 0.50", "1"]},
    }
    text = shown(capsys, tmp_path, tables=[noted], warnings=[f"layer {n}" for n in range(12)])
    _, _, table = text.partition("remaining plasticity")
    assert row(table, "after 1 domain", "0.38 (0.25 to 0.50)", "1")
    assert "warning: layer 0\nwarning: layer 1\nwarning: layer 2\n9 more warnings are in " in text
    assert "plasticity" not in shown(capsys, tmp_path, method="plain")


@pytest.mark.parametrize(("mode", "rows"), [("separate", ["cs only", "reviews only"]), ("joint", ["all at once"])])
def test_separate_and_joint_models_are_named_as_such(capsys, tmp_path, mode, rows):
    text = shown(capsys, tmp_path, mode=mode, method="plain")
    assert all(name in text for name in rows)
    assert "after cs" not in text
    assert "forgetting" not in text
