"""What a training asks of the cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import ResourcesConfig
from adapt.job.dapt import dapt
from adapt.stage.context import Context
from tests.job.worlds import dapt_world


@pytest.mark.parametrize(
    ("resources", "needs"),
    [
        (ResourcesConfig(), {"CPU": 1}),
        (ResourcesConfig(workers=2, cpus_per_worker=3), {"CPU": 6}),
        (ResourcesConfig(workers=2, gpus_per_worker=0.5), {"CPU": 2, "GPU": 1}),
    ],
)
def test_a_training_asks_for_its_workers_and_nothing_for_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: ResourcesConfig, needs: dict[str, float]
) -> None:
    config = replace(dapt_world(tmp_path, monkeypatch), resources=resources)
    assert dapt(Context.of(config)).training.needs() == needs
