"""Fixtures: a store for stages, and a file in which toy stages record that they ran."""

from pathlib import Path

import pytest

from adapt.runner import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs.txt"
