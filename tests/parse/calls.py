"""Helpers for tests of `parse`: command lines, and the errors that command lines raise."""

import pytest

from adapt.config import Config
from adapt.parse import parse
from adapt.support.errors import ConfigError

PATHS = "--corpus.paths=a"  # every job on a corpus needs this field
DOMAINS = "--corpus.sources=[{name: a, paths: a.txt}]"


def sources(*entries: str) -> list[str]:
    return [f"--corpus.sources=[{', '.join(entries)}]"]


def parsed(*arguments: str) -> Config:
    return parse(arguments, "jobs/dapt.py")


def refused(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parsed(*arguments)
    assert "\n" not in caught.value.what  # The message is a single line.
    assert caught.value.fix
    return caught.value
