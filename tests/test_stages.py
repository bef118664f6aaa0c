"""The stages of a job: what their keys depend on, and what a plan says. Nothing here trains."""

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adapt.config import (
    Config,
    CorpusConfig,
    EvaluationConfig,
    EvaluationSet,
    MixtureConfig,
    ModelConfig,
    ObjectiveConfig,
    SourceConfig,
    StorageConfig,
    TrainingConfig,
    flat,
)
from adapt.errors import ConfigError, DataError, ModelError, StorageError
from adapt.preflight import check_writable
from adapt.runner import Stage, Store, ensure, plan
from adapt.runner.store import DIGITS
from adapt.stages import Catalogue
from tests.runner.toys import pretend

# A job's stages, by the way to them from the last.
MANIFESTS = {"domain.manifest", "general.manifest"}
MEASURED = {"before", "after", "export"}
DOMAIN = {"domain", "training", *MEASURED}
TRAINED = {"training", "after", "export"}
ALL = {*MANIFESTS, "domain", "general", *TRAINED, "before"}

# Every field stands in one of the three tables below. A new one has to be put into one: does it change what comes out
# (then of which stages?), is it only about how the work is done, or does it name something known by its content?
WHAT: dict[str, tuple[Any, set[str]]] = {
    "seed": (1, TRAINED),
    "corpus.source": ("docstrings", {"domain.manifest", *DOMAIN}),
    "corpus.text_field": ("body", DOMAIN),
    "corpus.text_unit": ("paragraph", {"general", *DOMAIN}),
    "corpus.id_field": ("id", DOMAIN),
    "corpus.max_record_mib": (1, {"general", *DOMAIN}),
    "corpus.cleaning": (["fix_unicode"], {"general", *DOMAIN}),
    "corpus.deduplicate": ("exact", DOMAIN),
    "corpus.heldout_fraction": (0.1, DOMAIN),
    "corpus.streaming": (True, DOMAIN),
    "mixture.order": ("sequential", TRAINED),
    "mixture.temperature": (2.0, TRAINED),
    "mixture.exhausted": ("stop", TRAINED),
    "mixture.replay_fraction": (0.2, TRAINED),
    "objective.kind": ("another", {"before", *TRAINED}),
    "objective.mask_fraction": (0.2, {"before", *TRAINED}),
    "objective.mask_token_fraction": (0.7, {"before", *TRAINED}),
    "objective.random_token_fraction": (0.2, {"before", *TRAINED}),
    "objective.entity_fraction": (0.2, {"before", *TRAINED}),
    "objective.entity_field": ("names", {"before", *TRAINED}),
    "objective.tagger": ("json:loads", {"before", *TRAINED}),
    "objective.span_stop": (0.3, {"before", *TRAINED}),
    "objective.span_max_words": (5, {"before", *TRAINED}),
    "model.attention_dropout": (0.0, TRAINED),
    "method.kind": ("das", TRAINED),
    "training.max_steps": (7, TRAINED),
    "training.max_tokens": (7, TRAINED),
    "training.epochs": (7.0, TRAINED),
    "training.learning_rate": (1e-4, TRAINED),
    "training.schedule": ("wsd", TRAINED),
    "training.warmup_fraction": (0.1, TRAINED),
    "training.warmup_steps": (7, TRAINED),
    "training.cooldown_fraction": (0.2, TRAINED),
    "training.floor_fraction": (0.1, TRAINED),
    "training.optimizer": ("stable_adamw", TRAINED),
    "training.weight_decay": (0.1, TRAINED),
    "training.decay_embeddings": (False, TRAINED),
    "training.beta1": (0.8, TRAINED),
    "training.beta2": (0.8, TRAINED),
    "training.epsilon": (1e-8, TRAINED),
    "training.max_gradient_norm": (0.0, TRAINED),
    "training.global_batch_size": (16, TRAINED),
    "training.sequence_length": (64, TRAINED),
    "evaluation.general_text_field": ("body", {"general", *DOMAIN}),
    "evaluation.max_documents": (7, MEASURED),
    "evaluation.max_tokens": (7, MEASURED),
    "evaluation.sequence_length": (64, MEASURED),
    "evaluation.bootstrap_samples": (7, MEASURED),
    "evaluation.examples": (7, MEASURED),
}
HOW: dict[str, Any] = {
    "name": "renamed",
    "corpus.max_bad_fraction": 0.5,
    "corpus.write_rejects": True,
    "mixture.replay_text_field": "body",
    "training.precision": "bf16",
    "training.micro_batch": 1,
    "training.gradient_checkpointing": True,
    "training.compile": True,
    "training.checkpoint_interval_steps": 7,
    "training.keep_checkpoints": 7,
    "training.log_interval_steps": 7,
    "evaluation.micro_batch": 1,
    "resources.address": "10.0.0.1:6379",
    "resources.workers": 4,
    "resources.cpus_per_worker": 2.0,
    "resources.gpus_per_worker": 0.5,
    "resources.zero_stage": 3,
    "resources.offload": "optimizer",
    "resources.device_memory_gib": 24.0,
    "resources.price_per_device_hour": 2.5,
    "resources.max_failures": 7,
    "resources.stages_at_once": 2,
    "resources.wait_s": 1.0,
    "storage.root": "elsewhere",
    "tracking.mlflow_uri": "http://localhost:5000",
    "tracking.wandb_project": "project",
}
# Fields that do nothing by themselves: with what they count, and then for which stages.
NEAR = {"corpus.deduplicate": "near"}
DAS = {"method.kind": "das"}
AGAINST = {"corpus.decontaminate": [EvaluationSet("questions", "data/questions.jsonl")]}
WITH: dict[str, tuple[dict[str, Any], Any, set[str]]] = {
    "corpus.near_ngram": (NEAR, 3, DOMAIN),
    "corpus.near_permutations": (NEAR, 64, DOMAIN),
    "corpus.near_threshold": (NEAR, 0.7, DOMAIN),
    "corpus.decontaminate": (AGAINST, [EvaluationSet("questions", "data/a.jsonl")], DOMAIN),
    "corpus.decontaminate_ngram": (AGAINST, 8, DOMAIN),
    "corpus.decontaminate_overlap": (AGAINST, 0.9, DOMAIN),
    "das.soft_mask": (DAS, "gradient", TRAINED),
    "das.general_importance": (DAS, "random", TRAINED),
    "das.importance_sequences": (DAS, 7, TRAINED),
    "das.importance_batch": (DAS, 7, TRAINED),
    "das.granularity": (DAS, "example", TRAINED),
    "das.normalize": (DAS, "rank", TRAINED),
    "das.injected_dropout": (DAS, 0.2, TRAINED),
    "das.plasticity_floor": (DAS, 0.2, TRAINED),
    "das.embeddings": (DAS, "frequency", set()),  # of domains, of which a sequence has several
    "das.contrast_weight": (DAS, 0.5, TRAINED),
    "das.contrast_temperature": (DAS, 0.1, TRAINED),
    "das.contrast_documents": (DAS, 62, TRAINED),
    "das.contrast_cost": (DAS, "exact", TRAINED),
    "das.economy_fraction": (DAS | {"das.contrast_cost": "economy"}, 0.5, TRAINED),
}
CONTENT = {
    *("corpus.sources", "corpus.dataset", "corpus.dataset_config", "corpus.dataset_split", "corpus.dataset_revision"),
    *("corpus.paths", "evaluation.general_paths", "mixture.replay_paths"),
    *("model.path", "model.revision", "model.tokenizer", "model.trust_remote_code"),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder as far as keys go: nothing of it is read but its config."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 128}))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def config(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A job on two files, with a general corpus, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "general"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.jsonl").write_text(json.dumps({"text": f"text of {name}"}) + "\n")
    return Config(
        model=ModelConfig(path=str(model)),
        corpus=CorpusConfig(paths=["data/a.jsonl", "data/b.jsonl"]),
        training=TrainingConfig(global_batch_size=8, sequence_length=128),
        evaluation=EvaluationConfig(sequence_length=128, general_paths="data/general.jsonl"),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def changed(config: Config, name: str, value: Any) -> Config:
    """The configuration with another value for a field, by its dotted name."""
    *section, field = name.split(".")
    inner = replace(getattr(config, section[0]), **{field: value}) if section else value
    return replace(config, **{section[0] if section else field: inner})


def keys(config: Config) -> dict[str, str]:
    """The keys of a job's stages, by the way to them from the last."""
    export = Catalogue(config).dapt()
    found = {"export": export.key}
    for name, stage in export.inputs.items():
        found[name] = stage.key
        if "manifest" in stage.inputs:
            found[f"{name}.manifest"] = stage.inputs["manifest"].key
    return found


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


OTHER_JOBS = {"sequence", "task", "tasks", "tapt", "finetune", "comparison", "similarity", "advice"}
"""Sections that this job does not look at; the tests of the other stages do."""


def test_every_field_is_known_to_change_results_or_not() -> None:
    fields = [name for name in flat(Config()) if name.split(".")[0] not in OTHER_JOBS]
    assert sorted([*WHAT, *HOW, *WITH, *CONTENT]) == sorted(fields)


def test_a_job_has_these_stages(config: Config) -> None:
    found = keys(config)
    assert set(found) == ALL
    assert len(set(found.values())) == len(ALL)
    assert found == keys(config)


@pytest.mark.parametrize("name", WHAT)
def test_a_field_that_determines_results_changes_these_keys(config: Config, name: str) -> None:
    value, expected = WHAT[name]
    other = changed(config, name, value)
    if name == "corpus.source":
        other = changed(other, "corpus.paths", [])
    assert flat(other) != flat(config)
    assert differing(keys(config), keys(other)) == expected


@pytest.mark.parametrize("name", WITH)
def test_a_field_that_counts_only_with_others(config: Config, tmp_path: Path, name: str) -> None:
    (tmp_path / "data" / "questions.jsonl").write_text('{"text": "Is this a question?"}\n')
    others, value, expected = WITH[name]
    without = changed(config, name, value)
    if name != "corpus.decontaminate":
        assert differing(keys(config), keys(without)) == set()
    for other, setting in others.items():
        config, without = changed(config, other, setting), changed(without, other, setting)
    assert differing(keys(config), keys(changed(without, name, value))) == expected


def test_duplicates_are_known_before_the_corpus_is_prepared(config: Config) -> None:
    prepared = Catalogue(changed(config, "corpus.deduplicate", "near")).dapt().inputs["domain"]
    assert {stage.stage for stage in prepared.inputs.values()} == {"manifest", "dedup", "prepare"}
    general, corpus = prepared.inputs["dedup"].inputs.values()
    assert corpus.key == prepared.inputs["manifest"].key
    assert general.key == prepared.inputs["measured general"].inputs["manifest"].key


def test_however_a_cleaning_block_is_written_it_is_the_same(config: Config) -> None:
    short, long = (["symbols"], [{"symbols": {"max_bullets": 0.9, "min_mean_word": 3.0}}])
    one, other = (keys(changed(config, "corpus.cleaning", cleaning)) for cleaning in (short, long))
    assert differing(one, other) == set()


def test_a_block_that_loses_the_places_of_entities(config: Config) -> None:
    mended = changed(config, "corpus.cleaning", ["fix_unicode"])
    entity = replace(mended, objective=ObjectiveConfig(kind="entity", entity_field="names"))
    assert "corpus.cleaning has fix_unicode" in refused(ConfigError, entity)


PREPARED = {"domain", "general", "before", *TRAINED}


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({"kind": "mlm", "mask_fraction": 0.3}, {"before", *TRAINED}),
        ({"kind": "whole_word"}, PREPARED),
        ({"kind": "span"}, PREPARED),
        ({"kind": "entity", "entity_field": "names"}, PREPARED),
        ({"kind": "causal"}, PREPARED),
    ],
)
def test_an_objective_prepares_again_if_it_needs_other_columns(
    config: Config, objective: dict[str, Any], expected: set[str]
) -> None:
    assert differing(keys(config), keys(replace(config, objective=ObjectiveConfig(**objective)))) == expected


def test_objectives_on_words_share_their_corpus(config: Config) -> None:
    words, spans = (keys(changed(config, "objective.kind", kind)) for kind in ("whole_word", "span"))
    assert differing(words, spans) == {"before", *TRAINED}


def test_the_field_of_entities_and_the_source_of_a_tagger_count(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "names_of_genes.py"
    source.write_text("def find(text): return []\n")

    def found(**given: str) -> dict[str, str]:
        return keys(replace(config, objective=ObjectiveConfig(kind="entity", **given)))

    assert differing(found(entity_field="a"), found(entity_field="b")) == PREPARED
    before = found(tagger="names_of_genes:find")
    assert differing(before, found(tagger="names_of_genes:find")) == set()
    source.write_text("def find(text): return [(0, 1)]\n")
    assert differing(before, found(tagger="names_of_genes:find")) == PREPARED
    with pytest.raises(ConfigError, match="there is no module names_of_nobody") as caught:
        found(tagger="names_of_nobody:find")
    assert "PYTHONPATH" in caught.value.fix


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
def test_a_model_that_looks_the_wrong_way(
    config: Config, model: Path, architecture: str, kind: str, fault: str | None
) -> None:
    (model / "config.json").write_text(json.dumps({"model_type": "x", "architectures": [architecture]}))
    wanted = changed(config, "objective.kind", kind)
    if fault is None:
        Catalogue(wanted)
    else:
        with pytest.raises(ModelError, match=f"holds a {architecture}, but {fault}"):
            Catalogue(wanted)


@pytest.mark.parametrize("name", HOW)
def test_a_field_about_how_changes_no_key(config: Config, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # both trackers are installed
    other = changed(config, name, HOW[name])
    if name == "resources.offload":
        other = changed(other, "resources.zero_stage", 2)
    assert flat(other) != flat(config)
    assert differing(keys(config), keys(other)) == set()


# --- what is known by its content

Tamper = Callable[[Path], object]


def append(name: str) -> Tamper:
    def tamper(folder: Path) -> None:
        with (folder / name).open("a") as file:
            file.write(" ")

    return tamper


CONTENTS: list[tuple[str, Tamper, set[str]]] = [
    ("a byte of the corpus", append("data/b.jsonl"), {"domain.manifest", *DOMAIN}),
    ("a byte of the general corpus", append("data/general.jsonl"), {"general.manifest", "general", *DOMAIN}),
    ("a byte of the weights", append("model/model.safetensors"), {"before", *TRAINED}),
    ("a byte of the model's config", append("model/config.json"), {"before", *TRAINED}),
    ("a byte of the tokenizer", append("model/tokenizer.json"), ALL - MANIFESTS),
    ("the time of everything", lambda f: [os.utime(p, (5, 5)) for p in f.rglob("*.*")], set()),
    ("another file in the model's folder", lambda f: (f / "model/README.md").write_text("x"), set()),
    ("another file beside the corpus", lambda f: (f / "data/c.jsonl").write_text("x"), set()),
]


@pytest.mark.parametrize(("tamper", "expected"), [case[1:] for case in CONTENTS], ids=[case[0] for case in CONTENTS])
def test_content_is_what_counts(config: Config, tmp_path: Path, tamper: Tamper, expected: set[str]) -> None:
    before = keys(config)
    tamper(tmp_path)
    assert differing(before, keys(config)) == expected


def test_names_and_places_of_corpus_files_do_not_count(config: Config, tmp_path: Path) -> None:
    before = keys(config)
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "moved" / "a.jsonl").rename(tmp_path / "moved" / "0.jsonl")
    moved = changed(changed(config, "corpus.paths", ["moved/0.jsonl", str(tmp_path / "moved" / "b.jsonl")]), *GENERAL)
    assert differing(before, keys(moved)) == set()
    (tmp_path / "moved" / "general.jsonl").rename(tmp_path / "general.jsonl")
    folder = changed(changed(config, "corpus.paths", "moved"), "evaluation.general_paths", ["general.jsonl"])
    assert differing(before, keys(folder)) == set()


GENERAL = ("evaluation.general_paths", "moved/general.jsonl")


def test_the_order_of_corpus_files_counts(config: Config) -> None:
    turned = changed(config, "corpus.paths", ["data/b.jsonl", "data/a.jsonl"])
    assert differing(keys(config), keys(turned)) == {"domain.manifest", *DOMAIN}


def test_what_is_measured_as_general_text_is_left_out_of_what_is_trained_on(config: Config) -> None:
    without = changed(config, "evaluation.general_paths", [])
    assert differing(keys(config), keys(without)) == {"general", "general.manifest", *DOMAIN}


def heldout_of_general(config: Config) -> float:
    fraction: float = Catalogue(config).dapt().inputs["general"].what["corpus"]["heldout_fraction"]
    return fraction


def replayed(config: Config, *paths: str) -> Config:
    return changed(config, "mixture.replay_paths", list(paths))


def test_general_text_is_measured_whole_unless_its_files_are_trained_on(config: Config, tmp_path: Path) -> None:
    """Then its held-out share is, which everything that is trained on leaves out."""
    (tmp_path / "data" / "other.jsonl").write_text('{"text": "another"}\n')
    shutil.copy("data/general.jsonl", tmp_path / "copy.jsonl")
    assert heldout_of_general(config) == 1
    assert heldout_of_general(replayed(config, "data/other.jsonl")) == 1
    for paths in (["data/general.jsonl"], ["data/other.jsonl", "copy.jsonl"]):  # by content, wherever it lies
        shared = replayed(config, *paths)
        assert heldout_of_general(shared) == 0.01
        export = Catalogue(shared).dapt()
        general, replay = export.inputs["general"], export.inputs["training"].inputs["(replay)"]
        assert replay.inputs["measured general"].key == general.key
        assert replay.what["corpus"]["heldout_fraction"] == 0.01
    sources = [SourceConfig(name, paths=f"data/{name}.jsonl") for name in ("a", "general")]
    assert heldout_of_general(replace(config, corpus=CorpusConfig(sources=sources))) == 0.01


def test_general_text_that_cannot_be_measured(config: Config) -> None:
    domain = refused(ConfigError, changed(config, "corpus.paths", "data/general.jsonl"))
    assert "evaluation.general_paths and corpus.paths read the same text" in domain
    whole = replayed(changed(config, "corpus.heldout_fraction", 0.0), "data/general.jsonl")
    message = refused(ConfigError, whole)
    assert "evaluation.general_paths and mixture.replay_paths read the same text" in message
    assert "corpus.heldout_fraction is 0" in message


def test_near_copies_of_what_is_measured_are_looked_for_in_all_that_is_trained_on(config: Config) -> None:
    """And of what is mixed in, in what the domain measures."""
    near = replayed(changed(config, "corpus.deduplicate", "near"), "data/b.jsonl")
    training = Catalogue(near).dapt().inputs["training"]
    looked = {name: [*text.inputs["dedup"].inputs.values()] for name, text in training.inputs.items()}
    general = training.inputs["domain"].inputs["measured general"].inputs["manifest"].key
    domain, replay = (training.inputs[name].inputs["manifest"].key for name in ("domain", "(replay)"))
    assert [stage.key for stage in looked["domain"]] == [general, replay, domain]
    assert [stage.key for stage in looked["(replay)"]] == [general, replay]
    held = changed(near, "corpus.heldout_fraction", 0.1)
    assert Catalogue(held).dapt().inputs["domain"].inputs["dedup"].key != training.inputs["domain"].inputs["dedup"].key


def test_the_place_of_the_model_does_not_count(config: Config, tmp_path: Path, model: Path) -> None:
    shutil.copytree(model, tmp_path / "copy")
    for name, value in (
        ("model.path", str(tmp_path / "copy")),
        ("model.revision", "v2"),  # of a folder there are none
        ("model.tokenizer", str(tmp_path / "copy")),
        ("model.trust_remote_code", True),
    ):
        assert differing(keys(config), keys(changed(config, name, value))) == set(), name


def test_another_tokenizer_counts(config: Config, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("[PAD]\n")
    other = changed(config, "model.tokenizer", str(tmp_path / "tokenizer"))
    assert differing(keys(config), keys(other)) == ALL - MANIFESTS


# --- plans


def job(config: Config) -> tuple[Stage, Store]:
    catalogue = Catalogue(config)
    return catalogue.dapt(), Store(catalogue.root)


def finish(config: Config) -> None:
    """Records for all stages, as if the job had run."""
    stage, store = job(config)
    ensure(pretend(stage), store)


def planned(config: Config) -> dict[str, Any]:
    found = plan(*job(config))
    names = [f"{line.folder.parent.name}/{line.folder.name[: -DIGITS - 1]}" for line in found]
    return {name: "done" if line.record else line.changed for name, line in zip(names, found, strict=True)}


NAMES = [
    *("manifest/dapt", "manifest/dapt-general", "prepare/dapt-general", "prepare/dapt"),
    *("train/dapt", "evaluate/dapt-before", "evaluate/dapt-after", "export/dapt"),
]


def test_a_first_plan_runs_everything_and_looks_at_all_data_before_training(config: Config) -> None:
    assert list(planned(config)) == NAMES
    assert all(state != "done" for state in planned(config).values())


def test_nothing_is_left_to_do_after_a_run(config: Config) -> None:
    finish(config)
    assert planned(config) == dict.fromkeys(NAMES, "done")
    renamed = plan(*job(changed(config, "name", "renamed")))
    assert all(line.record and line.folder.name.startswith("dapt") for line in renamed)


def test_another_learning_rate_trains_again_and_prepares_nothing(config: Config) -> None:
    finish(config)
    before, other = keys(config), changed(config, "training.learning_rate", 1e-4)
    now = keys(other)

    def renewed(name: str) -> str:
        return f"input {name}: {before[name][:8]}… -> {now[name][:8]}…"

    assert planned(other) == {
        **dict.fromkeys(NAMES, "done"),
        "train/dapt": ["training.learning_rate: 0.0005 -> 0.0001"],
        "evaluate/dapt-after": [renewed("training")],
        "export/dapt": [renewed("after"), renewed("training")],
    }


def test_a_byte_of_the_corpus_is_named_as_the_reason(config: Config, tmp_path: Path) -> None:
    finish(config)
    append("data/b.jsonl")(tmp_path)
    found = planned(config)
    assert [line.split(":")[0] for line in found["manifest/dapt"]] == ["digest"]
    assert [line.split(":")[0] for line in found["prepare/dapt"]] == ["input manifest"]
    assert [line.split(":")[0] for line in found["train/dapt"]] == ["input domain"]
    assert [name for name, state in found.items() if state == "done"] == [
        "manifest/dapt-general",
        "prepare/dapt-general",
    ]


def test_the_first_stage_lists_the_files_and_their_digests(config: Config, tmp_path: Path) -> None:
    stage, store = job(config)
    record = ensure(stage.inputs["domain"].inputs["manifest"], store)
    files = [tmp_path / "data" / "a.jsonl", tmp_path / "data" / "b.jsonl"]
    assert record.metrics == {"parts": 2, "bytes": sum(file.stat().st_size for file in files), "empty_files": 0}
    listed = json.loads((record.path / "manifest.json").read_text())["parts"]
    assert [(part["path"], part["size"], part["digest"]) for part in listed] == [
        (str(file), file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files
    ]


# --- what is refused before anything is started


def refused(kind: type[Exception], config: Config) -> str:
    with pytest.raises(kind) as caught:
        Catalogue(config).dapt()
    return str(caught.value)


@pytest.mark.parametrize("name", ["training.sequence_length", "evaluation.sequence_length"])
def test_sequences_longer_than_the_model_takes(config: Config, name: str) -> None:
    said = refused(ConfigError, changed(config, name, 129))
    assert f"{name} is 129, but the model takes 128 tokens" in said


def test_a_batch_that_cannot_be_shared(config: Config) -> None:
    assert "no multiple of resources.workers 3" in refused(ConfigError, changed(config, "resources.workers", 3))


@pytest.mark.parametrize(("name", "package"), [("tracking.mlflow_uri", "mlflow"), ("tracking.wandb_project", "wandb")])
def test_a_tracker_that_is_not_installed(
    config: Config, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = refused(ConfigError, changed(config, name, "x"))
    assert f"{name} is set but {package} is not installed" in said
    assert f"pip install 'dontstop[{package}]'" in said


@pytest.mark.parametrize("given", ["address", "RAY_ADDRESS"])
@pytest.mark.parametrize("name", ["storage.root", "tracking.mlflow_uri"])
def test_a_relative_folder_for_results_on_a_cluster(
    config: Config, tmp_path: Path, name: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    Catalogue(changed(config, name, "results")).dapt()
    if given == "address":
        config = changed(config, "resources.address", "10.0.0.1:6379")
    else:
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    shutil.rmtree(tmp_path / "results", ignore_errors=True)
    said = refused(ConfigError, changed(config, name, "results"))
    assert f"{name} is relative, but on a cluster a job runs in a throwaway copy of its working directory" in said
    assert f"--{name} /shared/results" in said
    assert not (tmp_path / "results").exists()
    Catalogue(changed(config, name, str(tmp_path / "results"))).dapt()


def test_a_storage_root_that_cannot_be_written(config: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in ("file", "file/deeper"):
        assert f"cannot write {tmp_path / root}" in refused(StorageError, changed(config, "storage.root", root))


def test_two_jobs_may_start_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            list(pool.map(check_writable, [tmp_path] * 100))


def test_paths_that_match_nothing(config: Config) -> None:
    assert "gone.jsonl matches no file" in refused(DataError, changed(config, "corpus.paths", "gone.jsonl"))
    assert "no*.jsonl matches no file" in refused(DataError, changed(config, "evaluation.general_paths", "no*.jsonl"))


def test_a_model_that_is_not_there(config: Config) -> None:
    assert "there is no model folder ./gone" in refused(ModelError, changed(config, "model.path", "./gone"))


# Mixtures


@pytest.fixture
def several(config: Config) -> Config:
    """The job's two files as two sources, and general text to replay."""
    sources = [SourceConfig(name, paths=f"data/{name}.jsonl") for name in ("a", "b")]
    mixture = MixtureConfig(replay_paths="data/general.jsonl")
    return replace(config, corpus=replace(config.corpus, paths=[], sources=sources), mixture=mixture)


def of_training(config: Config) -> tuple[str, dict[str, str]]:
    """The key of a job's training, and those of what it reads."""
    training = Catalogue(config).dapt().inputs["training"]
    return training.key, {name: stage.key for name, stage in training.inputs.items()}


def with_weights(config: Config, *weights: float) -> Config:
    sources = [replace(s, weight=weight) for s, weight in zip(config.corpus.sources, weights, strict=True)]
    return replace(config, corpus=replace(config.corpus, sources=sources))


def test_every_source_is_prepared_for_itself(several: Config) -> None:
    key, read = of_training(several)
    assert list(read) == ["a", "b", "(replay)"]
    alone = replace(several, corpus=replace(several.corpus, sources=several.corpus.sources[:1]))
    assert of_training(alone)[1] == {name: read[name] for name in ("a", "(replay)")}
    assert of_training(alone)[0] != key


def test_how_sources_are_mixed_changes_the_training_alone(several: Config) -> None:
    key, read = of_training(several)
    turned = replace(several, corpus=replace(several.corpus, sources=several.corpus.sources[::-1]))
    others = [with_weights(several, 1, 2), with_weights(several, 2, 1), turned]
    found = [of_training(other) for other in others]
    assert len({key, *(each for each, _ in found)}) == 4
    assert all(each == read for _, each in found)


def mixed(config: Config, **tokens: int) -> Any:
    inputs: Any = {name: SimpleNamespace(metrics={"train_tokens": count}) for name, count in tokens.items()}
    return Catalogue(config)._mixture(inputs)


def test_a_mixture_is_of_the_sources_rows(several: Config) -> None:
    mixture = mixed(with_weights(several, 1, 3), **{"a": 1000, "b": 129, "(replay)": 1})
    assert mixture.rows == (8, 2, 1)
    assert mixture.slots == (225, 675, 100)
    assert [sum(group.rows) for group in mixture.groups] == [8, 2, 1]


def test_a_share_for_text_without_a_row_is_refused_by_name(several: Config) -> None:
    """No sample of it could ever be found, and looking for one would never end."""
    weighted = with_weights(several, 1, 3)
    with pytest.raises(DataError, match=r"corpus\.sources: b has weight 3, but no text to train on"):
        mixed(weighted, a=1000, b=0)
    with pytest.raises(DataError, match=r"replay_fraction is 0\.1, but the files of mixture\.replay_paths have"):
        mixed(weighted, **{"a": 1000, "b": 129, "(replay)": 0})
    with pytest.raises(ConfigError, match=r"corpus\.sources: the weights of a, b are all 0"):
        mixed(with_weights(several, 0, 0), a=1000, b=129)  # of a part of the sources, as a joint training may have


def test_text_without_a_row_that_gets_no_share_is_left_out(several: Config) -> None:
    none = changed(several, "mixture.replay_fraction", 0.0)
    for config in (with_weights(none, 1, 0), changed(none, "mixture.temperature", 2.0), none):
        mixture = mixed(config, **{"a": 1000, "b": 0, "(replay)": 0})
        assert mixture.drawn(100) == [100, 0, 0]
        assert mixture.locate(np.arange(100)).sources.max() == 0
