"""Tests forecasts of training runs."""

from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, ResourcesConfig, TrainingConfig
from adapt.runner import Record, Store
from adapt.train.capacity import forecast as module
from adapt.train.capacity.device import Device
from adapt.train.capacity.flops import training_flops, workload
from adapt.train.capacity.forecast import REACHED, DocumentsAsRows, forecast
from adapt.train.capacity.memory import GIB
from tests.train.capacity.test_memory import ROBERTA

TOKENS = 1_000_000
MACHINE = Device("cpu", 64 * GIB, has_bf16=True, name="CPU, 8 threads")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "known_device", lambda resources: None if resources.address else MACHINE)
    monkeypatch.setattr(module, "measured", lambda *_: (MACHINE, 1e12))


def config(price: float | None = 3.0, address: str | None = None, **training: Any) -> Config:
    return Config(
        training=TrainingConfig(**training), resources=ResourcesConfig(price_per_device_hour=price, address=address)
    )


def trained(root: Path, name: str, device: str, precision: str, rate: float, started_at: str = "2026") -> None:
    folder = root / "train" / name
    folder.mkdir(parents=True)
    Record(
        stage="train", name=name, key=name, version=1, what={}, inputs={}, outputs={}, packages={},
        metrics={"flops": rate * 100, "device_seconds": 100.0}, cost={"device_seconds": 180.0},
        resources={"device": device, "precision": precision}, started_at=started_at, path=folder,
    ).save()  # fmt: skip


FLOPS = TOKENS * training_flops(ROBERTA, workload(Config().objective, 512, 100.0))


def test_without_earlier_runs_the_machine_is_measured(tmp_path: Path) -> None:
    ahead = forecast(config(), ROBERTA, TOKENS, 100.0, Store(tmp_path))
    assert ahead.flops == FLOPS
    assert ahead.device_hours == pytest.approx(FLOPS / (REACHED * 1e12) / 3600)
    assert ahead.cost == pytest.approx(3 * ahead.device_hours)
    assert not ahead.missing
    lines = ahead.lines()
    assert lines["parameters"] == "124,697,433"
    assert lines["micro-batch"] == "16 sequences per pass, 128 passes per step"
    assert "activations" in lines["memory per device"]
    assert "40% of the speed of large matrix products on this machine" in lines["device time"]


def test_padding_of_documents_as_rows_is_forecast(tmp_path: Path) -> None:
    """A pass has two rows. In the first pass, documents of 300 and 200 tokens are padded to the same length."""
    as_rows = DocumentsAsRows("padded", [[300], [200], [512], [512]])
    ahead = forecast(config(micro_batch=2), ROBERTA, TOKENS, 400.0, Store(tmp_path), as_rows)
    work, share = workload(Config().objective, 512, 400.0), 1 - 1524 / 1624
    assert ahead.lines()["padding"] == "6.2% of the computed positions are padding, in 1.0 passes per micro-batch"
    assert ahead.flops == pytest.approx(TOKENS * training_flops(ROBERTA, work, padding=share))
    unknown = forecast(config(), ROBERTA, TOKENS, 400.0, Store(tmp_path), DocumentsAsRows("padded", None))
    assert "padding" not in unknown.lines()
    assert any("share of padding" in missing for missing in unknown.missing)


def test_checkpointing_increases_the_forecast_time(tmp_path: Path) -> None:
    plain, again = (
        forecast(config(gradient_checkpointing=on), ROBERTA, TOKENS, 100.0, Store(tmp_path)) for on in (False, True)
    )
    assert 1.2 * plain.flops < again.flops < 4 / 3 * plain.flops


def test_the_speed_is_that_of_an_earlier_run_on_the_same_device(tmp_path: Path) -> None:
    for name, device, precision, rate, at in (
        ("older", MACHINE.name, "bf16", 1e9, "2024"),
        ("newer", MACHINE.name, "bf16", 2e9, "2025"),
        ("elsewhere", "CPU, 2 threads", "bf16", 3e9, "2026"),
        ("otherwise", MACHINE.name, "fp32", 4e9, "2026"),
    ):
        trained(tmp_path, name, device, precision, rate, at)
    ahead = forecast(config(), ROBERTA, TOKENS, 100.0, Store(tmp_path))
    assert (ahead.rate, ahead.rate_from) == (2e9, "as newer reached on CPU, 8 threads")
    assert forecast(config(precision="fp32"), ROBERTA, TOKENS, 100.0, Store(tmp_path)).rate == 4e9


def test_on_a_cluster_unknown_facts_are_named(tmp_path: Path) -> None:
    ahead = forecast(config(None, "10.0.0.1:6379"), ROBERTA, None, None, Store(tmp_path))
    assert (ahead.fit, ahead.flops, ahead.device_hours, ahead.cost) == (None, None, None, None)
    assert [text.split(" (")[0].split(",")[0] for text in ahead.missing] == [
        "the cluster's devices",
        "the size of the corpus",
        "the price",
    ]
    assert set(ahead.lines()) == {"parameters", "not known"}
    assert "the speed of the devices" in " ".join(
        forecast(config(None, "10.0.0.1:6379"), ROBERTA, TOKENS, None, Store(tmp_path)).missing
    )


def test_on_a_cluster_the_speed_is_that_of_its_last_run(tmp_path: Path) -> None:
    trained(tmp_path, "earlier", "NVIDIA H200", "bf16", 1e14)
    ahead = forecast(config(address="10.0.0.1:6379"), ROBERTA, TOKENS, 100.0, Store(tmp_path))
    assert ahead.rate_from == "as earlier reached on NVIDIA H200"
    assert ahead.cost == pytest.approx(3 * FLOPS / 1e14 / 3600)


def test_a_forecast_says_that_a_training_will_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "known_device", lambda _: Device("cuda", 4 * GIB, has_bf16=True))
    ahead = forecast(config(micro_batch=64), ROBERTA, TOKENS, 100.0, Store(tmp_path))
    assert "does not fit" in ahead.lines()["refused"]
    assert "--training.micro_batch" in ahead.lines()["refused"]
