"""What jobs/sequence.py says at its end."""

from pathlib import Path
from typing import Any

import pytest

from adapt.runner import Finished
from adapt.runner.result import plain_values
from adapt.show.blocks import NONE
from adapt.stage.domains.sequence import SequenceResult
from tests.runner.made import made_up
from tests.runner.test_record import record
from tests.show.report.fake_sequences import ORDERS, sequence
from tests.show.shown import show_result
from tests.test_summary import row


def shown(capsys: pytest.CaptureFixture[str], folder: Path, **metrics: Any) -> str:
    made = sequence(ORDERS["a"], metrics.pop("mode", "continual"), 0, 0.01, metrics.pop("method", "das"))
    made = plain_values(made_up(SequenceResult, **(made | metrics)))
    show_result(Finished(record(folder, name="[demo] x", metrics=made), SequenceResult))
    out, err = capsys.readouterr()
    assert out == ""  # stdout is for programs
    return err


def test_every_model_has_a_row_of_scores_and_of_losses(capsys, tmp_path):
    scores = {
        "columns": {"helpful": 3, "acl_arc": 0, "cs": 0},
        "metric": {},
        "rows": [{}, {"acl_arc": [0.7, 0.72], "cs": [0.5]}, {}, {}, {"acl_arc": [0.6], "helpful": [0.805]}],
    }
    text = shown(capsys, tmp_path, scores=scores)
    assert "[demo] x: das, continual, seed 0, domains cs → biomed → news → reviews\n" in text
    assert row(text.replace("┃", "│"), "", "acl_arc (cs)", "cs", "helpful (reviews)")
    assert row(text, "after cs", "71.0 ± 1.4", "50.0", NONE)
    assert row(text, "after reviews", "60.0", NONE, "80.5")
    assert not row(text, "after news", NONE, NONE, NONE)  # no task was run
    assert row(text, "before", "2.400", "2.500", "2.600", "2.700", "1.300")
    assert "model: /runs/export/model\n" in text


def test_figures_are_said_with_what_their_sign_means(capsys, tmp_path):
    text = shown(capsys, tmp_path, average=0.712, forgetting=-0.012, loss_forgetting=0.0314, general_change=None)
    assert "average score at the end: 71.2 points\n" in text
    assert "forgetting rate: -1.2 points (later domains helped)\n" in text
    assert "forgetting on held-out loss: +0.031 nats (forgotten)\n" in text
    assert "general text" not in text


def test_what_the_method_noted_is_shown_and_warnings_in_short(capsys, tmp_path):
    noted = {
        "title": "plasticity left",
        "columns": ["heads", "inner"],
        "rows": {"after 1 domain": ["0.38\n0.25 to 0.50", "1"]},
    }
    text = shown(capsys, tmp_path, tables=[noted], warnings=[f"layer {n}" for n in range(12)])
    _, _, table = text.partition("plasticity left")
    assert row(table, "after 1 domain", "0.38 (0.25 to 0.50)", "1")
    assert "warning: layer 0\nwarning: layer 1\nwarning: layer 2\nand 9 more warnings, in stage.json\n" in text
    assert "plasticity" not in shown(capsys, tmp_path, method="plain")


@pytest.mark.parametrize(("mode", "rows"), [("separate", ["cs only", "reviews only"]), ("joint", ["all at once"])])
def test_models_that_learn_nothing_after_another_are_named_so(capsys, tmp_path, mode, rows):
    text = shown(capsys, tmp_path, mode=mode, method="plain")
    assert all(name in text for name in rows)
    assert "after" not in text.replace("just after", "")
    assert "forgetting" not in text
