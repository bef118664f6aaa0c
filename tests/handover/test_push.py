"""Tests the push of a model to a local fake of the Hub: files, a broken upload, and errors without access."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import constants

from adapt.cli.main import push
from adapt.handover.push import check_access, check_repository, push_command_of, push_folder
from adapt.support.errors import ConfigError, HubError, ModelError
from tests.handover.fake_hub import TOKEN, FakeHub, fake_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield served


@pytest.fixture
def model(tiny_bert: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (folder / "stage.json").write_text("{}")
    (folder / "gliner" / "trained" / "checkpoint-1").mkdir(parents=True)
    (folder / "gliner" / "train.json").write_text("[]")
    (folder / "gliner" / "trained" / "checkpoint-1" / "optimizer.pt").write_bytes(b"of GLiNER")
    (folder / ".hidden").write_text("")
    return folder


def test_the_files_of_the_model_arrive_in_a_private_repository(hub: FakeHub, model: Path) -> None:
    sent = push_folder(model, "me/bert-physics")
    assert sent.url == f"{hub.address}/me/bert-physics"
    assert hub.repositories["me/bert-physics"]["visibility"] == "private"
    assert sent.commit == "1".zfill(40)
    assert {*hub.files} == {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    for name, content in hub.files.items():
        assert content == (model / name).read_bytes()


def test_a_broken_push_keeps_the_model_and_goes_on(hub: FakeHub, model: Path) -> None:
    hub.breaks_at = "/commit/"
    with pytest.raises(
        HubError, match=r"the push to me/bert-physics failed: the Hub answered with status 500"
    ) as raised:
        push_folder(model, "me/bert-physics")
    assert f"The model stays in {model}" in raised.value.what
    assert f"dontstop push {model} me/bert-physics" in raised.value.fix
    assert not hub.files
    assert (model / "model.safetensors").is_file()
    hub.breaks_at = ""
    push_folder(model, "me/bert-physics")
    assert len(hub.uploads) == 1  # the second push did not upload the weights again
    assert "model.safetensors" in hub.files


def test_a_second_push_removes_the_weights_of_the_first(hub: FakeHub, model: Path) -> None:
    sharded = ("model-00001-of-00001.safetensors", "model.safetensors.index.json")
    old = (
        "onnx/model.onnx",
        "gguf/model-f16.gguf",
        "model_head.pkl",
        "config_setfit.json",
        "generator/model.safetensors",
    )
    for name in old:
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("old")
    push_folder(model, "me/bert-physics")
    assert {*old} <= {*hub.files}
    hub.files["LICENSE"] = b"written on the Hub"
    for name in old:
        (model / name).unlink()
    (model / "model.safetensors").rename(model / sharded[0])
    (model / sharded[1]).write_text(json.dumps({"weight_map": {"weight": sharded[0]}}))
    push_folder(model, "me/bert-physics")
    others = {"LICENSE", "README.md", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {*hub.files} == {*others, *sharded}
    assert hub.commits == 2
    push_folder(model, "me/bert-physics")
    assert {*hub.files} == {*others, *sharded}


@pytest.mark.parametrize("inner", ["", "model"])
def test_a_stage_that_is_not_finished_is_not_pushed(inner: str, hub: FakeHub, model: Path, tmp_path: Path) -> None:
    stage = tmp_path / "runs" / "export" / "physics-0123456789abcdef"
    shutil.copytree(model, stage / inner)
    (stage / inner / "stage.json").unlink()
    with pytest.raises(ModelError, match=r"physics-0123456789abcdef has no stage.json, so its stage is not finished"):
        push_folder(stage / inner, "me/m")
    assert not hub.asked
    (stage / "stage.json").write_text("{}")
    push_folder(stage / inner, "me/m")
    assert "model.safetensors" in hub.files


def test_the_command_pushes_and_prints_the_address(
    hub: FakeHub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push([str(model), "me/open", "--public"])
    assert hub.repositories["me/open"]["visibility"] == "public"
    assert f'"url": "{hub.address}/me/open"' in capsys.readouterr().out


def test_a_token_that_may_not_write_is_named(hub: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(HubError, match=r"the Hub refused the token.*\n.*may write to me/m: dontstop push") as raised:
        push_folder(model, "me/m")
    assert "hf_other" not in str(raised.value)


def test_without_a_network_the_command_is_named(hub: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise httpx.ConnectError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(HubError, match=r"the Hub cannot be reached: Name or service not known. The model stays in"):
        push_folder(model, "me/m")


def test_without_a_token_nothing_is_asked(hub: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match=rf"HF_TOKEN is not set\n.*push later: dontstop push {model} me/m"):
        push_folder(model, "me/m")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubError, match=r"HF_HUB_OFFLINE is set\n.*unset HF_HUB_OFFLINE"):
        check_access(model, "me/m")
    assert not hub.asked


@pytest.mark.parametrize("inner", ["\n", " ", "\u00e9"])
def test_an_ill_formed_token_is_refused_and_not_shown(
    inner: str, hub: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", f"hf_first{inner}second\n")
    with pytest.raises(HubError, match=r"HF_TOKEN has spaces, line breaks .*\n.*copy the token again") as raised:
        push_folder(model, "me/m")
    assert "first" not in str(raised.value)
    assert "second" not in str(raised.value)
    assert not hub.asked


def test_neither_the_token_nor_a_signed_address_is_in_an_error(
    hub: FakeHub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ValueError(f"no upload with {TOKEN} to https://host/part?X-Amz-Signature=abcdef: refused")

    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", refuse)
    with pytest.raises(HubError, match=r"no upload with \*\*\* to https://host/part: refused") as raised:
        push_folder(model, "me/m")
    assert TOKEN not in str(raised.value)
    assert "abcdef" not in str(raised.value)


def test_a_card_that_the_hub_would_refuse_is_named(hub: FakeHub, model: Path) -> None:
    (model / "README.md").write_text("---\nmodel-index: [{name: a}]\n---\n")
    with pytest.raises(HubError, match=r"the YAML header of .*README.md is not valid: "):
        push_folder(model, "me/m")
    assert not hub.files


NO_NAMES = ["bert", "me/you/bert", "me/-bert", "me/a b", "me/a--b", f"me/{'a' * 100}"]
NO_NAMES += ["me/bert-", "me/bert.", "me/bert.git", "me-/bert", "mé/bert", "me/bért"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_of_no_repository_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the name of a repository"):
        check_repository(name)


@pytest.mark.parametrize("name", ["me/a", "m/b.c-d_e", "me/bert_", "me/2git"])
def test_names_of_repositories_are_accepted(name: str) -> None:
    check_repository(name)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config.json"):
        push_folder(tmp_path, "me/m")
    with pytest.raises(ConfigError, match=r"there is no folder"):
        push([str(tmp_path / "none"), "me/m"])
    with pytest.raises(ConfigError, match=r"does not take me/m\n.*dontstop push PATH OWNER/NAME"):
        push(["me/m"])
    assert push_command_of(Path("a b"), "me/m") == "dontstop push 'a b' me/m"
