"""Instruct models are known by their chat template, and told of once."""

import json
from pathlib import Path

import pytest

from adapt.model.instruct import is_instruct, warn_of_instruct
from adapt.model.locate import Pretrained


@pytest.mark.parametrize("file", ["chat_template.jinja", "chat_template.json"])
def test_a_template_beside_the_tokenizer_or_in_its_settings_tells(tmp_path: Path, file: str) -> None:
    assert not is_instruct(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": None}))
    assert not is_instruct(tmp_path)
    (tmp_path / file).write_text("{}")
    assert is_instruct(tmp_path)
    (tmp_path / file).unlink()
    settings.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert is_instruct(tmp_path)


def test_the_warning_comes_once_and_names_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_instruct(Pretrained(tmp_path, tmp_path))
    assert capsys.readouterr().err == ""
    instruct = tmp_path / "instruct"
    instruct.mkdir()
    (instruct / "chat_template.jinja").write_text("{{ messages }}")
    for _ in range(2):
        warn_of_instruct(Pretrained(tmp_path / "model", instruct))
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1
    assert "merge.kind: residual" in said
