"""Tests how a configuration becomes the options of a merge, and which configurations are refused."""

from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest

from adapt.config import Config, MergeConfig
from adapt.merge.merger import Merging, decay_weights
from adapt.merge.table import MERGERS, merging_of
from adapt.support.errors import ConfigError


def asked(models: int, **fields: Any) -> Merging:
    return merging_of(replace(Config(seed=5), merge=MergeConfig(**fields)), models)


def test_every_merger_is_a_choice_of_the_configuration() -> None:
    assert set(get_args(get_type_hints(MergeConfig)["kind"])) == set(MERGERS)
    assert len({*MERGERS.values()}) == len(MERGERS)


def test_defaults_are_those_of_the_kind() -> None:
    assert asked(1) == Merging("interpolate", (0.5,), (), None, 5)
    assert asked(3, kind="average") == Merging("average", (1.0,), (1.0, 1.0, 1.0), None, 5)
    assert asked(2, kind="task_arithmetic") == Merging("task_arithmetic", (0.4,), (1.0, 1.0), None, 5)
    assert asked(2, kind="ties") == Merging("ties", (1.0,), (1.0, 1.0), 0.2, 5)
    assert asked(2, kind="dare", density=0.5, shares=[1]) == Merging("dare", (1.0,), (1.0, 1.0), 0.5, 5)
    assert asked(2, kind="residual") == Merging("residual", (1.0,), (), None, 5)


def test_a_decay_is_converted_to_weights() -> None:
    assert asked(4, kind="average", weights="sqrt").weights == decay_weights("sqrt", 4)
    assert asked(1, kind="task_arithmetic", weights=[-1]).weights == (-1.0,)


def test_shares_above_one_need_extrapolate() -> None:
    assert asked(1, shares=[1.2, -0.1], extrapolate=True).shares == (1.2, -0.1)
    for share in (1.2, -0.1):
        with pytest.raises(ConfigError, match=rf"merge\.shares: {share} is not between") as caught:
            asked(1, shares=[0.5, share])
        assert "merge.extrapolate" in caught.value.fix


@pytest.mark.parametrize(
    ("models", "fields", "said"),
    [
        (0, {}, "takes 1 model, but merge.models has 0"),
        (2, {}, "takes 1 model, but merge.models has 2"),
        (0, {"kind": "average"}, "takes 1 or more models"),
        (1, {"kind": "residual"}, "takes 2 models, but merge.models has 1"),
        (1, {"shares": []}, "empty"),
        (1, {"shares": [0.5, 0.5]}, "repeated"),
        # Both shares give the same folder name.
        (1, {"shares": [0.5, 0.5000001]}, "repeated"),
        (1, {"shares": [float("nan")]}, "nan is not a finite number"),
        (1, {"weights": [1.0]}, "merge.weights is set"),
        (2, {"kind": "ties", "weights": [1.0]}, "1 numbers, but there are 2 models"),
        (2, {"kind": "ties", "weights": [1.0, -1.0]}, "cannot use"),
        (2, {"kind": "average", "weights": [0.0, 1.0]}, "cannot use"),
        (2, {"kind": "dare", "weights": [0.0, 0.0]}, "cannot use"),
        (2, {"kind": "dare", "weights": [1.0, float("inf")]}, "cannot use"),
        (2, {"kind": "ties", "weights": "cosine"}, "only merge.kind average"),
        (1, {"density": 0.5}, "merge.density is set"),
        (2, {"kind": "ties", "density": 0.0}, "keeps no differences"),
    ],
)
def test_invalid_options_are_refused(models: int, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        asked(models, **fields)
    assert said in f"{caught.value}"
