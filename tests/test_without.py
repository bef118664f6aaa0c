"""What is made absent is so for imports inside alone."""

import sys

import pytest

from adapt.without import absent


def test_an_import_fails_inside_and_works_after() -> None:
    sys.modules.pop("wave", None)
    with absent("wave"), pytest.raises(ModuleNotFoundError):
        import wave
    import wave

    assert wave.open


def test_a_package_that_is_loaded_stays_there() -> None:
    import json

    with absent("json"):
        assert sys.modules["json"] is json
        import json as again

        assert again is json
    assert sys.modules["json"] is json


def test_it_is_there_again_after_an_error() -> None:
    sys.modules.pop("wave", None)
    with pytest.raises(KeyError), absent("wave"):
        raise KeyError
    import wave

    assert wave.open
