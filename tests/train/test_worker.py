"""What a rank tells the method of its training."""

from pathlib import Path

import pytest
import torch

from adapt.config import Config
from adapt.corpus.batches.mixture import Mixture
from adapt.model.locate import Pretrained
from adapt.train.job import TrainingRun
from adapt.train.worker import _setting


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        (Mixture.of([8, 2], 0, replay=[5], recalled=[3], recalled_fraction=0.1), 13),
        (Mixture.of([8], 0), None),
        (None, None),
    ],
)
def test_a_method_is_told_where_general_text_begins(
    tmp_path: Path, mixture: Mixture | None, expected: int | None
) -> None:
    """A streamed corpus has no mixture."""
    pretrained = Pretrained(tmp_path, tmp_path, False)
    job = TrainingRun(Config(), "ab" * 32, str(tmp_path), (), mixture, pretrained, 8)
    assert _setting(job, torch.device("cpu"), 1, "fp32").first_general == expected
