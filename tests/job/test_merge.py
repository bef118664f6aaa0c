"""Tests the merge job: its stages and key, refused configurations, and the loading of merged models."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from adapt.config import Config, MergeConfig, ModelConfig, StorageConfig, TrainingConfig
from adapt.config.job_sections import EvaluationConfig
from adapt.job.job_run import carry_out
from adapt.job.training_jobs import MERGE_JOB, merge_stages
from adapt.merge.companion_files import MergeFacts, merge_card
from adapt.model.architecture import warn_of_instruct
from adapt.model.load import load_model
from adapt.model.rebuilt_model import is_headless
from adapt.model.sentence_vectors import SentenceVectors, read_sentence_vectors, write_sentence_vectors
from adapt.model.tokenizer import load_tokenizer
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.support.errors import ConfigError, ModelError
from tests.handover.models import bytewise, decoder
from tests.merge.folders import extended, folder_of, moved, weights_in
from tests.show.shown import show_result


@pytest.fixture
def models(tmp_path: Path, tiny_bert: Path) -> list[Path]:
    """Returns the folders of two models, each trained from the base model."""
    base = weights_in(tiny_bert)
    return [folder_of(tmp_path / f"model-{seed}", moved(base, seed), like=tiny_bert) for seed in (1, 2)]


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path, models: list[Path]) -> Config:
    return Config(
        name="mixed",
        model=ModelConfig(path=str(tiny_bert)),
        merge=MergeConfig(models=[str(models[0])]),
        training=TrainingConfig(sequence_length=64),
        evaluation=EvaluationConfig(sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def asking(config: Config, **fields: Any) -> Config:
    return replace(config, merge=replace(config.merge, **fields))


def key(config: Config) -> str:
    return merge_stages(Context.of(config)).key


def test_each_share_gives_a_model_that_loads_and_has_a_card(
    config: Config, tiny_bert: Path, models: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs the merge command twice. The second run must find everything finished."""
    lines = []
    for _ in range(2):
        carry_out(
            MERGE_JOB,
            [
                f"--model.path={tiny_bert}",
                f"--merge.models=[{models[0]}]",
                "--merge.shares=[0, 0.25]",
                "--training.sequence_length=64",
                "--evaluation.sequence_length=64",
                f"--storage.root={config.storage.root}",
            ],
        )
        lines.append(capsys.readouterr())
    assert "merge: done" in lines[0].err
    assert "merge: done" not in lines[1].err
    line = json.loads(lines[1].out)
    folder = Path(line["path"])
    assert line["metrics"]["shares"] == {"0": "share-0", "0.25": "share-0.25"}
    assert f"share 0.25: {folder / 'share-0.25'}" in lines[1].err
    base, other = (load_model(path).state_dict() for path in (tiny_bert, models[0]))
    for share in (0, 0.25):
        place = folder / f"share-{share}"
        found = load_model(place).state_dict()
        assert all(torch.equal(found[name], one.lerp(other[name], share)) for name, one in base.items())
        assert load_tokenizer(place).get_vocab() == load_tokenizer(tiny_bert).get_vocab()
    card = (folder / "share-0.25" / "README.md").read_text()
    assert "without training: `interpolate`, share 0.25." in card
    assert "(1 - a) theta_0 + a theta_1" in card
    assert all(str(path) in card for path in (tiny_bert, models[0]))
    assert "AutoModelForMaskedLM.from_pretrained(folder)" in card


def test_with_one_share_the_stage_folder_is_a_model(config: Config, models: list[Path]) -> None:
    config = asking(config, kind="ties", models=[*map(str, models)], weights=[2.0, 1.0])
    context = Context.of(config)
    finished = ensure(merge_stages(context), context.store)
    assert load_model(finished.path).num_parameters() > 0
    assert finished.result.weights == [2.0, 1.0]
    assert finished.result.density == 0.2
    assert "| model 1 |" in (finished.path / "README.md").read_text()
    again = Context.of(
        replace(config, model=ModelConfig(path=str(finished.path)), merge=MergeConfig(models=[str(models[0])]))
    )
    assert merge_stages(again).start.digest  # A merged model can be merged again.


def test_merged_embedding_models_keep_their_pooling_and_have_no_random_head(
    config: Config, tmp_path: Path, tiny_bert: Path
) -> None:
    base = headless(tmp_path / "base", tiny_bert)
    vectors = SentenceVectors("cls", normalize=True, max_length=64)
    write_sentence_vectors(vectors, base)
    model = folder_of(tmp_path / "model", moved(weights_in(base), 1), like=tiny_bert)
    context = Context.of(asking(replace(config, model=ModelConfig(path=str(base))), models=[str(model)]))
    folder = ensure(merge_stages(context), context.store).path
    found = read_sentence_vectors(folder)
    assert found
    assert replace(found, settings={}) == vectors
    assert (folder / "2_Normalize" / "config.json").is_file()
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: sentence-similarity" in card
    assert "library_name: sentence-transformers" in card
    assert "AutoModel.from_pretrained(folder)" in card
    assert "AutoModelForMaskedLM" not in card


def test_the_card_of_a_merged_model_without_a_head_shows_none(tmp_path: Path, tiny_bert: Path) -> None:
    untied, tied = (
        decoder(tmp_path / str(tied), "llama", bytewise(), tie_word_embeddings=tied) for tied in (False, True)
    )
    folders = [untied, tied, tiny_bert, headless(tmp_path / "base", tiny_bert)]
    assert [is_headless(folder) for folder in folders] == [False, False, False, True]
    AutoModel.from_pretrained(untied).save_pretrained(untied)
    assert is_headless(untied)
    card = merge_card(MergeFacts("a", "b", "average", "rule", 1.0, {}, [], False), None, has_head=False)
    assert "pipeline_tag: feature-extraction" in card
    assert "AutoModel.from_pretrained(folder)" in card


def headless(folder: Path, like: Path) -> Path:
    """Writes a copy of a BERT model without its head, and returns the folder."""
    weights = {name.removeprefix("bert."): one for name, one in weights_in(like).items() if not name.startswith("cls.")}
    return folder_of(folder, weights, like=like)


def test_the_key_depends_on_everything_that_determines_the_result(
    config: Config, tmp_path: Path, models: list[Path]
) -> None:
    both = asking(config, kind="dare", models=[*map(str, models)])
    keys = [
        key(config),
        key(asking(config, shares=[0.3])),
        key(asking(config, models=[str(models[1])])),
        key(both),
        key(asking(both, models=[*map(str, models[::-1])])),
        key(asking(both, weights=[1.0, 2.0])),
        key(asking(both, density=0.3)),
        key(replace(both, seed=1)),
        key(asking(both, kind="task_arithmetic")),
    ]
    assert len({*keys}) == len(keys)
    assert key(replace(config, seed=1)) == keys[0]  # This merge draws nothing at random, so the seed does not matter.
    assert key(asking(config, shares=[0.5])) == keys[0]  # 0.5 is the default share.
    copy = shutil.copytree(models[0], tmp_path / "copy")
    assert key(asking(config, models=[str(copy)])) == keys[0]
    # A pattern names the matching folders in alphabetical order.
    assert key(asking(both, models=[str(tmp_path / "model-?")])) == keys[3]


def test_bad_input_is_refused_before_anything_is_read(config: Config, tmp_path: Path, models: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"merge\.models: /nowhere/x does not exist"):
        key(asking(config, models=["/nowhere/x"]))
    with pytest.raises(ConfigError, match="matches nothing"):
        key(asking(config, models=[f"{tmp_path}/none-*"]))
    with pytest.raises(ConfigError, match=r"merge\.models has 0"):
        key(asking(config, models=[]))
    file = models[0] / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="layers is 3"):
        key(config)


def test_the_merged_model_has_the_chat_template_of_the_instruct_model(
    config: Config, models: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (models[1] / "chat_template.jinja").write_text("{{ messages }}")
    (models[1] / "generation_config.json").write_text("{}")
    swapped = asking(config, kind="residual", models=[*map(str, models[::-1])])
    with pytest.raises(ConfigError, match="the second model must be the instruct model"):
        key(swapped)
    context = Context.of(asking(config, kind="residual", models=[*map(str, models)]))
    finished = ensure(merge_stages(context), context.store)
    assert (finished.path / "chat_template.jinja").read_text() == "{{ messages }}"
    assert (finished.path / "generation_config.json").exists()
    assert "is an instruct model" not in capsys.readouterr().err
    warn_of_instruct.cache_clear()
    key(replace(config, model=ModelConfig(path=str(models[1]))))
    assert "is an instruct model" in capsys.readouterr().err


# --- models with more tokens than the base


def test_merging_with_an_extended_model_adds_its_tokens(
    config: Config, tmp_path: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks that the merged model has the extended model's tokens, and its rows for the added tokens."""
    model = extended(tmp_path / "more", tiny_bert, ["qubit", "gluon"])
    context = Context.of(asking(config, models=[str(model)], shares=[0.25]))
    finished = ensure(merge_stages(context), context.store)
    assert finished.result.new_tokens == 2
    ids = load_tokenizer(finished.path).get_vocab()
    assert ids == load_tokenizer(model).get_vocab()
    mixed, base, other = (load_model(path).state_dict() for path in (finished.path, tiny_bert, model))
    table = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(mixed[table][[ids["qubit"], ids["gluon"]]], other[table][-2:])
    known = len(base[table])
    assert torch.equal(mixed[table][:known], base[table].lerp(other[table][:known], 0.25))
    assert "| new tokens | 2 |" in (finished.path / "README.md").read_text()
    show_result(finished)
    assert "2 tokens that the base model does not have" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_an_extended_model_gets_the_instruct_residual(
    config: Config, tmp_path: Path, tiny_bert: Path, models: list[Path], place: str
) -> None:
    """Checks that the merged model has the tokens of the adapted model and the chat template of the instruct model."""
    adapted, instruct = extended(tmp_path / "more", tiny_bert, ["qubit"]), models[1]
    settings = json.loads((instruct / "tokenizer_config.json").read_text())
    template = "{{ messages }}"
    written = template if place.endswith("jinja") else json.dumps({**settings, "chat_template": template})
    (instruct / place).write_text(written)
    context = Context.of(asking(config, kind="residual", models=[str(adapted), str(instruct)]))
    finished = ensure(merge_stages(context), context.store)
    tokenizer = load_tokenizer(finished.path)
    assert tokenizer.chat_template == template
    assert "qubit" in tokenizer.get_vocab()
    table = "bert.embeddings.word_embeddings.weight"
    found, base, one, two = (weights_in(path)[table] for path in (finished.path, tiny_bert, adapted, instruct))
    assert torch.equal(found[-1], one[-1])
    assert torch.allclose(found[:-1], one[:-1] + two - base, atol=1e-6)


# --- in chains
