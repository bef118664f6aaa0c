"""Tests the `Setting` object that a rank passes to its method, and the report of a run that ended early."""

from pathlib import Path

import pytest
import torch

from adapt.config import Config
from adapt.corpus.sample_order import Mixture
from adapt.method.base import Method
from adapt.method.weight_means import AverageOptions, WindowAverage
from adapt.model.locate import Pretrained
from adapt.train.training_run import Stretch, TrainingRun
from adapt.train.worker import cut_short_notice, method_setting


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        (Mixture.of([8, 2], 0, replay=[5], recalled=[3], recalled_fraction=0.1), 13),
        (Mixture.of([8], 0), None),
        (None, None),
    ],
)
def test_a_method_gets_the_first_row_of_general_text(
    tmp_path: Path, mixture: Mixture | None, expected: int | None
) -> None:
    """A streamed corpus has no mixture, so the row of general text is unknown."""
    pretrained = Pretrained(tmp_path, tmp_path, False)
    stretches = (Stretch(0, 8, 1, 8, mixture, 0),) if mixture else ()
    job = TrainingRun(Config(), "ab" * 32, str(tmp_path), (), stretches, pretrained, 8)
    assert method_setting(job, Method(), torch.device("cpu"), 1, "fp32").first_general == expected


def test_only_a_method_that_depends_on_the_length_gets_it_and_reports_a_short_run(tmp_path: Path) -> None:
    job = TrainingRun(Config(), "ab" * 32, str(tmp_path), (), (), Pretrained(tmp_path, tmp_path, False), 8)
    average = WindowAverage(AverageOptions(window=0.5, points=5))
    told = [method_setting(job, method, torch.device("cpu"), 1, "fp32") for method in (Method(), average)]
    assert [setting.length for setting in told] == [None, 8]
    average.prepare_model(None, told[1])
    assert [cut_short_notice(Method(), "plain", 3, 8), cut_short_notice(average, "average", 8, 8)] == ["", ""]
    for kind in ("average", "cpt"):
        said = cut_short_notice(average, kind, 3, 8)
        assert said.startswith(f"the text ended at step 3 of 8, and method.kind {kind} had planned for all steps")
