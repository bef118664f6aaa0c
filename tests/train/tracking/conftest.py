"""Where trackers write while they are tested."""

from pathlib import Path

import pytest

from adapt.train.tracking.track import ENVIRONMENT
from tests.train.tracking.tracked import API_KEY


@pytest.fixture
def offline_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a user's machine with W&B's key set, but offline and with a home of its own."""
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")  # so that what is set from now on is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home" / name))
