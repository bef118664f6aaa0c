"""Tests the output of --help and --print_config."""

import ast
import inspect
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import pytest
import yaml

from adapt.config import Config, flat
from adapt.parse.keys import OPTIONS, option_sections
from tests.parse.calls import parsed


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments)
    assert caught.value.code == 0
    return capsys.readouterr().out


# For each field, a value that differs from the default. YAML could misread some of these values.
VALUES: dict[str, Any] = {
    "name": "123",
    "seed": -1,
    "model.path": "~/models/a: b #c",
    "model.revision": "0123456",
    "model.tokenizer": "null-ish",
    "model.trust_remote_code": True,
    "corpus.paths": ["a b/*.jsonl", "no", "[x]"],
    "corpus.text_field": "yes",
    "corpus.text_unit": "paragraph",
    "training.max_steps": 10,
    "training.max_tokens": 10**12,
    "training.epochs": 0.1,
    "training.learning_rate": 1e-7,
    "training.epsilon": 1.5e-300,
    "training.precision": "bf16",
    "evaluation.general_paths": "été.txt",
    "resources.address": "ray://1.2.3.4:10001",
    "resources.gpus_per_worker": 0.5,
    "resources.zero_stage": 3,
    "storage.root": "/a'b\"c",
    "tracking.mlflow_uri": "http://localhost:5000",
    "tracking.wandb_project": "ünïcode",
}


def test_the_output_of_print_config_can_be_read_again(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    nested: dict[str, Any] = {}
    for name, value in VALUES.items():
        *section, field = name.split(".")
        (nested.setdefault(section[0], {}) if section else nested)[field] = value
    file = write(json.dumps(nested))  # JSON is valid YAML in which all strings are quoted.
    config = parsed("--config", file)
    assert {name: flat(config)[name] for name in VALUES} == VALUES
    shown = printed(capsys, "--config", file, "--print_config")
    assert parsed("--config", write(shown, "shown.yaml")) == config
    assert set(yaml.safe_load(shown)) == {field.name for field in fields(Config)} - OPTIONS | {
        "debug",
        *option_sections(),
    }


def test_print_config_shows_every_field_and_needs_no_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    shown = yaml.safe_load(printed(capsys, "--print_config"))
    names = {
        f"{section}.{field}" if isinstance(content, dict) else section
        for section, content in shown.items()
        for field in (content if isinstance(content, dict) else [None])
    }
    assert names == {*flat_with_options(), "debug"}


def flat_with_options() -> dict[str, Any]:
    """Returns the defaults of all fields, including the options of every method and selection, keyed by dotted name."""
    found: dict[str, Any] = {}
    for section, options in option_sections().items():
        found |= {f"{section}.{name}": value for name, value in vars(options()).items()}
    return {**found, **flat(Config())}


def documentation() -> dict[str, str]:
    """Reads the docstring below each field from the source code. The result is keyed by dotted name."""

    def documented(section: type, prefix: str) -> dict[str, str]:
        (read,) = ast.parse(inspect.getsource(section)).body
        assert isinstance(read, ast.ClassDef)
        return {
            f"{prefix}{line.target.id}": below.value.value
            for line, below in pairwise(read.body)
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        }

    found = documented(Config, "")
    for section, content in vars(Config()).items():
        if is_dataclass(content):
            found.update(documented(type(content), f"{section}."))
    for section, options in option_sections().items():
        found.update(documented(options, f"{section}."))
    return {name: text for name, text in found.items() if name not in OPTIONS}


def test_help_lists_every_field_with_meaning_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    shown = printed(capsys, "--help")
    assert "Domain-adaptive pre-training" in shown
    entries = {entry.split()[0].rstrip(","): " ".join(entry.split()) for entry in shown.split("\n  --")[1:]}
    documented = documentation()
    assert set(documented) == set(flat_with_options())
    for name, default in flat_with_options().items():
        assert " ".join(documented[name].split()) in entries[name], name
        assert f"default: {'null' if default is None else default})" in entries[name], name
