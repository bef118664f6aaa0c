"""Tests the stages that DAPT plans, their inputs, and the configurations that it refuses before anything runs."""

import hashlib
import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, MethodConfig, MixtureConfig, SourceConfig
from adapt.job.training_jobs import dapt_stages
from adapt.runner import ensure, plan_stages
from adapt.runner.store import DIGITS
from adapt.stage.context import Context
from adapt.stage.export_model import Export
from adapt.stage.prepare_text import Prepare
from adapt.support.errors import ConfigError, DataError, ModelError, StorageError
from tests.job.worlds import changed, dapt_world
from tests.runner.made import pretend


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return dapt_world(tmp_path, monkeypatch)


def built(config: Config) -> Export:
    return dapt_stages(Context.of(config))


# --- plans


def finish(config: Config) -> None:
    """Writes records for all stages of the job, as if the job had run."""
    context = Context.of(config)
    ensure(pretend(dapt_stages(context)), context.store)


def planned(config: Config) -> dict[str, Any]:
    context = Context.of(config)
    found = plan_stages(dapt_stages(context), context.store)
    names = [f"{line.folder.parent.name}/{line.folder.name[: -DIGITS - 1]}" for line in found]
    return {name: "done" if line.record else line.changed for name, line in zip(names, found, strict=True)}


NAMES = [
    *("manifest/dapt", "manifest/dapt-general", "prepare/dapt-general", "prepare/dapt"),
    *("train/dapt", "evaluate/dapt-before", "evaluate/dapt-after", "export/dapt"),
]


def test_the_first_plan_runs_everything_and_checks_all_data_before_training(config: Config) -> None:
    assert list(planned(config)) == NAMES
    assert all(state != "done" for state in planned(config).values())


def test_nothing_remains_after_a_run(config: Config) -> None:
    finish(config)
    assert planned(config) == dict.fromkeys(NAMES, "done")
    context = Context.of(changed(config, "name", "renamed"))
    renamed = plan_stages(dapt_stages(context), context.store)
    assert all(line.record and line.folder.name.startswith("dapt") for line in renamed)


def test_another_learning_rate_reruns_only_the_training_and_its_users(config: Config) -> None:
    finish(config)
    other = changed(config, "training.learning_rate", 1e-4)
    before, now = built(config), built(other)

    def renewed(name: str, input_of: str) -> str:
        return f"input {name}: {getattr(before, input_of).key[:8]}… -> {getattr(now, input_of).key[:8]}…"

    assert planned(other) == {
        **dict.fromkeys(NAMES, "done"),
        "train/dapt": ["training.learning_rate: 0.0005 -> 0.0001"],
        "evaluate/dapt-after": [renewed("start.training", "training")],
        "export/dapt": [renewed("after", "after"), renewed("training", "training")],
    }


def test_a_changed_byte_of_the_corpus_is_named_as_the_reason(config: Config, tmp_path: Path) -> None:
    finish(config)
    with (tmp_path / "data" / "b.jsonl").open("a") as file:
        file.write(" ")
    found = planned(config)
    assert [line.split(":")[0] for line in found["manifest/dapt"]] == ["digest"]
    assert [line.split(":")[0] for line in found["prepare/dapt"]] == ["input files.listing"]
    assert [line.split(":")[0] for line in found["train/dapt"]] == ["input corpora.domain"]
    done = [name for name, state in found.items() if state == "done"]
    assert done == ["manifest/dapt-general", "prepare/dapt-general"]


def test_the_first_stage_lists_the_files_and_their_digests(config: Config, tmp_path: Path) -> None:
    context = Context.of(config)
    domain = dapt_stages(context).domain
    assert isinstance(domain, Prepare)
    found = ensure(domain.files.listing, context.store)
    files = [tmp_path / "data" / "a.jsonl", tmp_path / "data" / "b.jsonl"]
    assert found.record.metrics == {"parts": 2, "bytes": sum(f.stat().st_size for f in files), "empty_files": 0}
    listed = json.loads((found.path / "manifest.json").read_text())["parts"]
    assert [(part["path"], part["size"], part["digest"]) for part in listed] == [
        (str(file), file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files
    ]


# --- several sources


@pytest.fixture
def several(config: Config) -> Config:
    """Returns the configuration with the job's two files as two sources, and with replayed general text."""
    sources = [SourceConfig(name, paths=f"data/{name}.jsonl") for name in ("a", "b")]
    mixture = MixtureConfig(replay_paths="data/general.jsonl")
    return replace(config, corpus=replace(config.corpus, paths=[], sources=sources), mixture=mixture)


def of_training(config: Config) -> tuple[str, dict[str, str]]:
    """Returns the key of a job's training stage, and the keys of the training's inputs."""
    training = built(config).training
    return training.key, {name: stage.key for name, stage in training.inputs.items()}


def test_every_source_is_prepared_separately(several: Config) -> None:
    key, read = of_training(several)
    assert list(read) == ["corpora.a", "corpora.b", "replay"]
    alone = replace(several, corpus=replace(several.corpus, sources=several.corpus.sources[:1]))
    assert of_training(alone)[1] == {name: read[name] for name in ("corpora.a", "replay")}
    assert of_training(alone)[0] != key


def test_mixture_weights_only_change_the_training(several: Config) -> None:
    def weighted(*weights: float) -> Config:
        sources = [replace(s, weight=weight) for s, weight in zip(several.corpus.sources, weights, strict=True)]
        return replace(several, corpus=replace(several.corpus, sources=sources))

    key, read = of_training(several)
    turned = replace(several, corpus=replace(several.corpus, sources=several.corpus.sources[::-1]))
    found = [of_training(other) for other in (weighted(1, 2), weighted(2, 1), turned)]
    assert len({key, *(each for each, _ in found)}) == 4
    assert all(each == read for _, each in found)


# --- refused before anything starts


def refused(kind: type[Exception], config: Config) -> str:
    with pytest.raises(kind) as caught:
        built(config)
    return str(caught.value)


@pytest.mark.parametrize("name", ["training.sequence_length", "evaluation.sequence_length"])
def test_sequences_longer_than_the_model_allows_are_refused(config: Config, name: str) -> None:
    said = refused(ConfigError, changed(config, name, 129))
    assert f"{name} is 129, but the model takes 128 tokens" in said


def test_a_batch_that_workers_cannot_share_equally_is_refused(config: Config) -> None:
    assert "no multiple of resources.workers 3" in refused(ConfigError, changed(config, "resources.workers", 3))


@pytest.mark.parametrize(("name", "package"), [("tracking.mlflow_uri", "mlflow"), ("tracking.wandb_project", "wandb")])
def test_a_tracker_that_is_not_installed_is_refused(
    config: Config, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = refused(ConfigError, changed(config, name, "x"))
    assert f"{name} is set but {package} is not installed" in said
    assert f"pip install 'dontstop[{package}]'" in said


@pytest.mark.parametrize("given", ["address", "RAY_ADDRESS"])
@pytest.mark.parametrize("name", ["storage.root", "tracking.mlflow_uri"])
def test_a_relative_folder_for_results_is_refused_on_a_cluster(
    config: Config, tmp_path: Path, name: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    built(changed(config, name, "results"))
    if given == "address":
        config = changed(config, "resources.address", "10.0.0.1:6379")
    else:
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    shutil.rmtree(tmp_path / "results", ignore_errors=True)
    said = refused(ConfigError, changed(config, name, "results"))
    assert (
        f"{name} is a relative path, but on a cluster a job runs in a temporary copy of its working directory" in said
    )
    assert f"--{name} /shared/results" in said
    assert not (tmp_path / "results").exists()
    built(changed(config, name, str(tmp_path / "results")))


def test_a_storage_root_that_cannot_be_written_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in ("file", "file/deeper"):
        assert f"cannot write {tmp_path / root}" in refused(StorageError, changed(config, "storage.root", root))


def test_paths_that_match_nothing_are_refused(config: Config) -> None:
    assert "gone.jsonl matches no file" in refused(DataError, changed(config, "corpus.paths", "gone.jsonl"))
    assert "no*.jsonl matches no file" in refused(DataError, changed(config, "evaluation.general_paths", "no*.jsonl"))


def test_a_missing_model_is_refused(config: Config) -> None:
    assert "there is no model folder ./gone" in refused(ModelError, changed(config, "model.path", "./gone"))


@pytest.mark.parametrize(
    ("architecture", "kind", "fault"),
    [
        ("GPT2LMHeadModel", "mlm", "masked language modelling needs an encoder"),
        ("LlamaForCausalLM", "span", "masked language modelling needs an encoder"),
        ("BertForMaskedLM", "causal", "causal language modelling needs a decoder"),
        ("BertForMaskedLM", "whole_word", None),
        ("XLMWithLMHeadModel", "mlm", None),
        ("GPT2LMHeadModel", "causal", None),
    ],
)
def test_a_model_with_the_wrong_direction_of_attention_is_refused(
    config: Config, architecture: str, kind: str, fault: str | None
) -> None:
    described = json.dumps({"model_type": "x", "architectures": [architecture]})
    (Path(config.model.path) / "config.json").write_text(described)
    wanted = changed(config, "objective.kind", kind)
    if fault is None:
        Context.of(wanted)
    else:
        assert f"holds a {architecture}, but {fault}" in refused(ModelError, wanted)


def test_a_corpus_that_equals_the_general_text_is_refused(config: Config) -> None:
    domain = refused(ConfigError, changed(config, "corpus.paths", "data/general.jsonl"))
    assert "evaluation.general_paths and corpus.paths read the same text" in domain
    whole = changed(changed(config, "corpus.heldout_fraction", 0.0), "mixture.replay_paths", "data/general.jsonl")
    message = refused(ConfigError, whole)
    assert "evaluation.general_paths and mixture.replay_paths read the same text" in message
    assert "corpus.heldout_fraction is 0" in message


def test_difference_masking_needs_general_text_and_prepared_text(config: Config) -> None:
    wanted = changed(config, "objective.kind", "difference")
    training = built(wanted).training
    assert training.weighed_words
    assert list(training.weighed_words.inputs) == ["texts.domain", "general"]
    assert "set evaluation.general_paths" in refused(ConfigError, changed(wanted, "evaluation.general_paths", []))
    assert "corpus.streaming is set" in refused(ConfigError, changed(wanted, "corpus.streaming", True))
    ewc = replace(wanted, method=MethodConfig("ewc"))
    with pytest.raises(ConfigError, match=r"method\.kind ewc measures a model with the objective"):
        assert built(ewc).key
