"""Provides a synthetic study and its report to all tests that do not change them."""

from pathlib import Path

import pytest

from adapt.show.report.study import Study
from adapt.show.report.study_results import Results, collect
from tests.show.report.fake_studies import fake_study, page_of


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return fake_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def results(study: Study) -> Results:
    return collect(study)


@pytest.fixture(scope="session")
def report(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(study, tmp_path_factory.mktemp("report"))
