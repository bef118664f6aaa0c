"""One made-up study and its report, for all tests that only look."""

from pathlib import Path

import pytest

from adapt.show.report.entry import Study
from adapt.show.report.tasks.collect import Results, collect
from adapt.show.report.write import write_report
from tests.show.report.fake import fake_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return fake_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def results(study: Study) -> Results:
    return collect(study)


@pytest.fixture(scope="session")
def report(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(study, tmp_path_factory.mktemp("report"))
