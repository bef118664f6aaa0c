"""The table of losses with and without domain ids."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapt.config import Config, MethodConfig
from adapt.evaluate.results import TextLoss
from adapt.stage.domains.routes import route_table
from tests.stage.done import record_of
from tests.stage.measured import built, done, two_domains


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return two_domains(tmp_path, monkeypatch)


def text(loss: float, routed: float, right: float | None) -> TextLoss:
    return TextLoss(loss, 9, 99, 0, routed, right)


def test_a_row_for_each_model_and_domain_that_it_has_parts_for(config: Config) -> None:
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


def test_experts_have_a_loss_of_their_mixture(config: Config) -> None:
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


def test_other_methods_have_none(config: Config) -> None:
    stage = built(config)
    assert route_table(stage.steps, done(stage)) is None
