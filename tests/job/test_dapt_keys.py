"""Tests, for each field of the configuration, which stages of DAPT have keys that depend on it. Nothing is run."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import BudgetConfig, Config, EvaluationSet, HarnessConfig, MtebConfig, PhaseConfig, StopConfig, flat
from adapt.config.job_config import DAPT
from adapt.job.training_jobs import dapt_stages
from adapt.method.das.method import DasOptions
from adapt.parse import parse_values
from adapt.stage.context import Context
from adapt.stage.prepare_text import Prepare
from adapt.support.errors import ConfigError
from tests.job.worlds import changed, dapt_world, differing

# The name of a stage lists the inputs that lead from the last stage to this stage.
LISTINGS = {"domain.listing", "general.listing"}
MEASURED = {"before", "after", "export"}
DOMAIN = {"domain", "training", *MEASURED}
TRAINED = {"training", "after", "export"}
ALL = {*LISTINGS, "domain", "general", *TRAINED, "before"}
PREPARED = {"domain", "general", "before", *TRAINED}

# Every field belongs to one of the three tables below. A field may change the results of some stages, change only how
# work is done, or name an input that is identified by its content. Add each new field to one of the tables.
WHAT: dict[str, tuple[Any, set[str]]] = {
    "seed": (1, TRAINED),
    "corpus.source": ("docstrings", {"domain.listing", *DOMAIN}),
    "corpus.text_field": ("body", DOMAIN),
    "corpus.text_unit": ("paragraph", {"general", *DOMAIN}),
    "corpus.max_record_mib": (1, {"general", *DOMAIN}),
    "corpus.documents": ("page", {"general", *DOMAIN}),
    "corpus.max_document_mib": (1, {"general", *DOMAIN}),
    "corpus.max_document_pages": (7, {"general", *DOMAIN}),
    "corpus.max_document_seconds": (7, {"general", *DOMAIN}),
    "corpus.cleaning": (["fix_unicode"], {"general", *DOMAIN}),
    "corpus.deduplicate": ("exact", DOMAIN),
    "corpus.heldout_fraction": (0.1, DOMAIN),
    "corpus.streaming": (True, DOMAIN),
    "mixture.order": ("sequential", TRAINED),
    "mixture.temperature": (2.0, TRAINED),
    "mixture.replay_fraction": (0.2, TRAINED),
    "mixture.replay_last": (0.3, TRAINED),
    "objective.kind": ("whole_word", PREPARED),
    "objective.mask_fraction": (0.2, TRAINED),
    "objective.entity_field": ("names", TRAINED),
    "objective.tagger": ("tests.corpus.test_entities:FirstWords", TRAINED),
    "model.attention_dropout": (0.0, TRAINED),
    "model.reinitialize_top": (1, {"before", *TRAINED}),
    "model.head": ("new", {"before", *TRAINED}),
    "method.kind": ("das", TRAINED),
    "training.max_steps": (7, TRAINED),
    "training.max_tokens": (7, TRAINED),
    "training.max_flops": (7.0, TRAINED),
    "training.epochs": (7.0, TRAINED),
    "training.learning_rate": (1e-4, TRAINED),
    "training.schedule": ("wsd", TRAINED),
    "training.warmup_fraction": (0.1, TRAINED),
    "training.warmup_steps": (7, TRAINED),
    "training.cooldown_fraction": (0.2, TRAINED),
    "training.floor_fraction": (0.1, TRAINED),
    "training.optimizer": ("stable_adamw", TRAINED),
    "training.weight_decay": (0.1, TRAINED),
    "training.embedding_rate": (0.5, TRAINED),
    "training.layer_decay": (0.9, TRAINED),
    "training.freeze": (["embeddings"], TRAINED),
    "training.batch_ramp": ([(500, 4)], TRAINED),
    "training.length_ramp": ([(500, 64)], TRAINED),
    "training.phases": ([PhaseConfig(steps=7)], TRAINED),
    "training.on_spike": ("skip", TRAINED),
    "training.beta1": (0.8, TRAINED),
    "training.beta2": (0.8, TRAINED),
    "training.epsilon": (1e-8, TRAINED),
    "training.max_gradient_norm": (0.0, TRAINED),
    "training.global_batch_size": (16, TRAINED),
    "training.sequence_length": (64, TRAINED),
    "evaluation.general_text_field": ("body", {"general", *DOMAIN}),
    "evaluation.max_documents": (7, MEASURED),
    "evaluation.mask_fraction": (0.3, MEASURED),
    "evaluation.max_tokens": (7, MEASURED),
    "evaluation.sequence_length": (64, MEASURED),
    "evaluation.bootstrap_samples": (7, MEASURED),
    "evaluation.examples": (7, MEASURED),
    "export.sentence_transformers": ("mean", {"export"}),
    "export.kinds": (["tei"], {"export"}),
    "export.license": ("apache-2.0", {"export"}),
    "export.language": ("en", {"export"}),
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
    "training.max_spikes": 7,
    "evaluation.micro_batch": 1,
    "evaluation.interval_steps": 5,
    "evaluation.share": 0.1,
    "resources.address": "10.0.0.1:6379",
    "resources.workers": 4,
    "resources.cpus_per_worker": 2.0,
    "resources.trainings_per_machine": 2,
    "resources.gpus_per_worker": 0.5,
    "resources.zero_stage": 3,
    "resources.offload": "optimizer",
    "resources.device_memory_gib": 24.0,
    "resources.price_per_device_hour": 2.5,
    "resources.budget": BudgetConfig(device_hours=2.0),
    "resources.max_failures": 7,
    "resources.max_idle_restarts": 7,
    "resources.max_stalls": 7,
    "resources.stall_s": 60.0,
    "resources.stages_at_once": 2,
    "resources.wait_s": 1.0,
    "export.private": False,
    "storage.root": "elsewhere",
    "storage.cache": "elsewhere",
    "storage.cache_gb": 1.0,
    "tracking.mlflow_uri": "http://localhost:5000",
    "tracking.wandb_project": "project",
    "notify.webhook": "MY_WEBHOOK",
    "notify.form": "slack",
    "notify.events": ["failure"],
}
# Fields that only matter together with other fields, and the stages whose keys then depend on the field.
NEAR = {"corpus.deduplicate": "near"}
DAS = {"method.kind": "das"}
AGAINST = {"corpus.decontaminate": [EvaluationSet("questions", "data/questions.jsonl")]}
VECTORS = {"export.sentence_transformers": "mean"}
PAIRS = {"retrieval.pairs": "data/a.jsonl", "retrieval.query_field": "label", "retrieval.positive_field": "body"}
RETRIEVED = {"retrieved.before", "retrieved.after", "export"}
WITH: dict[str, tuple[dict[str, Any], Any, set[str]]] = {
    "corpus.near_threshold": (NEAR, 0.7, DOMAIN),
    "corpus.decontaminate": (AGAINST, [EvaluationSet("questions", "data/a.jsonl")], DOMAIN),
    "corpus.decontaminate_ngram": (AGAINST, 8, DOMAIN),
    "corpus.decontaminate_overlap": (AGAINST, 0.9, DOMAIN),
    "model.head_warmup_steps": ({"model.head": "new"}, 3, TRAINED),
    "training.decay": ({"training.schedule": "wsd"}, "cosine", TRAINED),
    "training.stop": ({"evaluation.interval_steps": 5}, StopConfig(patience=2), TRAINED),
    "export.normalize": (VECTORS, True, {"export"}),
    "export.max_length": (VECTORS, 64, {"export"}),
    "retrieval.query_field": (PAIRS, "text", RETRIEVED),
    "retrieval.positive_field": (PAIRS, "text", RETRIEVED),
    "retrieval.corpus_field": (PAIRS, "body", RETRIEVED),
    "retrieval.query_prefix": (PAIRS, "query: ", RETRIEVED),
    "retrieval.document_prefix": (PAIRS, "passage: ", RETRIEVED),
    "retrieval.max_queries": (PAIRS, 7, RETRIEVED),
    "retrieval.max_documents": (PAIRS, 7, RETRIEVED),
    "das.soft_mask": (DAS, "gradient", TRAINED),
    "das.general_importance": (DAS, "random", TRAINED),
    "das.importance": (DAS, "fisher", TRAINED),
    "das.importance_sequences": (DAS, 7, TRAINED),
    "das.importance_batch": (DAS, 7, TRAINED),
    "das.granularity": (DAS, "example", TRAINED),
    "das.normalize": (DAS, "rank", TRAINED),
    "das.injected_dropout": (DAS, 0.2, TRAINED),
    "das.plasticity_floor": (DAS, 0.2, TRAINED),
    "das.share": (DAS, 0.5, TRAINED),
    "das.embeddings": (DAS, "frequency", set()),  # only matters in a sequence of several domains
    "das.contrast_weight": (DAS, 0.5, TRAINED),
    "das.contrast_temperature": (DAS, 0.1, TRAINED),
    "das.contrast_documents": (DAS, 62, TRAINED),
    "das.contrast_text": (DAS | {"mixture.replay_paths": "data/b.jsonl"}, "general", TRAINED),
    "das.contrast_cost": (DAS, "exact", TRAINED),
    "das.economy_fraction": (DAS | {"das.contrast_cost": "economy"}, 0.5, TRAINED),
}
CONTENT = {
    *("corpus.sources", "corpus.dataset", "corpus.dataset_config", "corpus.dataset_split", "corpus.dataset_revision"),
    "corpus.packages",
    *("corpus.paths", "evaluation.general_paths", "mixture.replay_paths", "retrieval.pairs", "retrieval.corpus"),
    *("model.path", "model.revision", "model.tokenizer", "model.trust_remote_code"),
}
OF_DECODERS = ("model.attention",)
"""Fields that only decoders have. Other tests check them."""
BY_POINTS = ("training.keep", "training.keep_metric", "evaluation.probe")
"""Fields that configure measurements during training, which `tests/stage/test_measured_training.py` checks."""
PUSHED = ("export.push",)
"""The field that adds a stage after the export, which `tests/stage/test_push_model.py` checks."""
GENERATED = ("mixture.replay_kind", "mixture.rephrased_fraction")
"""Fields about generated text. `tests/job/test_generated_text.py` checks them, and also the sections `generate` and
`synthesize`."""
BENCHMARKS = (*(f"harness.{name}" for name in vars(HarnessConfig())), *(f"mteb.{name}" for name in vars(MtebConfig())))
"""Fields of standard evaluations, which `tests/stage/test_benchmarks.py` checks."""
OTHER_JOBS = {
    *("generate", "synthesize"),
    "sequence",
    "task",
    "tasks",
    "tapt",
    "select",
    "merge",
    "finetune",
    "comparison",
    "ensemble",
    "similarity",
    "vocabulary",
    "advice",
    "tune",
}
"""Sections that DAPT does not use. The tests of other jobs cover these sections."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return dapt_world(tmp_path, monkeypatch)


def keys(config: Config) -> dict[str, str]:
    export = dapt_stages(Context.of(config))
    found = {"export": export.key}
    for name, stage in export.inputs.items():
        found[name] = stage.key
        if isinstance(stage, Prepare):
            found[f"{name}.listing"] = stage.files.listing.key
    return found


def given(config: Config, name: str, value: Any) -> Config:
    """Returns the configuration with one field set to a new value. The field may be an option of the method."""
    section, _, field = name.partition(".")
    if section != "das":
        return changed(config, name, value)
    return changed(config, "method_options", replace(config.method_options or DasOptions(), **{field: value}))


def test_every_field_is_classified() -> None:
    fields = [name for name in flat(Config(method_options=None)) if name.split(".")[0] not in OTHER_JOBS]
    options = [f"das.{name}" for name in vars(DasOptions())]
    assert sorted([*WHAT, *HOW, *WITH, *CONTENT, *OF_DECODERS, *BY_POINTS, *PUSHED, *GENERATED, *BENCHMARKS]) == sorted(
        [*fields, *options]
    )


def test_stages_have_distinct_and_reproducible_keys(config: Config) -> None:
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
def test_a_field_that_only_matters_with_others_changes_these_keys(config: Config, tmp_path: Path, name: str) -> None:
    (tmp_path / "data" / "questions.jsonl").write_text('{"text": "Is this a question?"}\n')
    others, value, expected = WITH[name]
    alone = ("corpus.decontaminate", "training.decay", "training.stop", "model.head_warmup_steps")
    if name not in alone and others.keys().isdisjoint(DAS):
        assert differing(keys(config), keys(given(config, name, value))) == set()
    for other, setting in others.items():
        config = given(config, other, setting)
    assert differing(keys(config), keys(given(config, name, value))) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("evaluation.interval_steps", 7),
        ("evaluation.share", 0.1),
        ("evaluation.max_documents", 7),
        ("evaluation.mask_fraction", 0.3),
    ],
)
def test_settings_of_measurements_that_may_end_a_training_change_its_key(config: Config, name: str, value: Any) -> None:
    shown = changed(config, "evaluation.interval_steps", 5)
    assert "training" not in differing(keys(shown), keys(changed(shown, name, value)))
    stopping = changed(shown, "training.stop", StopConfig(metric="general_loss", rise=0.1))
    assert "training" in differing(keys(stopping), keys(changed(stopping, name, value)))


def test_one_rule_and_a_list_of_it_have_the_same_keys(config: Config) -> None:
    shown, rule = changed(config, "evaluation.interval_steps", 5), StopConfig(patience=2)
    assert keys(changed(shown, "training.stop", rule)) == keys(changed(shown, "training.stop", [rule]))


def test_texts_that_are_only_shown_are_prepared_before_the_training_without_entering_its_key(config: Config) -> None:
    export = dapt_stages(Context.of(changed(config, "evaluation.interval_steps", 5)))
    training, general = export.inputs["training"], export.inputs["general"]
    assert general in training.needed
    assert general not in training.inputs.values()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.stop": StopConfig(patience=1)}, "set evaluation.interval_steps"),
        ({"evaluation.interval_steps": 5, "training.max_steps": 4}, "evaluation.interval_steps is 5, but the training"),
        (
            {"evaluation.interval_steps": 5, "training.stop": StopConfig(patience=1), "method.kind": "average"},
            "method.kind average exports a different model",
        ),
        ({"evaluation.interval_steps": 5, "objective.kind": "rtd"}, "objective.kind rtd"),
    ],
)
def test_measurements_that_cannot_work_are_refused_in_the_plan(
    config: Config, changes: dict[str, Any], said: str
) -> None:
    for name, value in changes.items():
        config = changed(config, name, value)
    with pytest.raises(ConfigError) as raised:
        keys(config)
    assert said in f"{raised.value.what}; {raised.value.fix}"


def test_options_of_other_methods_change_nothing(config: Config) -> None:
    values = {"model.path": config.model.path, "corpus.paths": config.corpus.paths}
    plain, others = (parse_values({**values, **more}, DAPT, "here") for more in ({}, {"das.soft_mask": "gradient"}))
    assert plain == others


@pytest.mark.parametrize("name", HOW)
def test_a_field_about_how_work_is_done_changes_no_key(
    config: Config, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # pretends that both trackers are installed
    other = changed(config, name, HOW[name])
    if name == "resources.offload":
        other = changed(other, "resources.zero_stage", 2)
    assert flat(other) != flat(config)
    assert differing(keys(config), keys(other)) == set()


# --- inputs that are identified by their content

Tamper = Callable[[Path], object]


def append(name: str) -> Tamper:
    def tamper(folder: Path) -> None:
        with (folder / name).open("a") as file:
            file.write(" ")

    return tamper


CONTENTS: list[tuple[str, Tamper, set[str]]] = [
    ("a byte of the corpus", append("data/b.jsonl"), {"domain.listing", *DOMAIN}),
    ("a byte of the general corpus", append("data/general.jsonl"), {"general.listing", "general", *DOMAIN}),
    ("a byte of the weights", append("model/model.safetensors"), {"before", *TRAINED}),
    ("a byte of the model's config", append("model/config.json"), {"before", *TRAINED}),
    ("a byte of the tokenizer", append("model/tokenizer.json"), ALL - LISTINGS),
    ("the time of everything", lambda f: [os.utime(p, (5, 5)) for p in f.rglob("*.*")], set()),
    ("another file in the model's folder", lambda f: (f / "model/README.md").write_text("x"), set()),
    ("another file beside the corpus", lambda f: (f / "data/c.jsonl").write_text("x"), set()),
]


@pytest.mark.parametrize(("tamper", "expected"), [case[1:] for case in CONTENTS], ids=[case[0] for case in CONTENTS])
def test_only_content_counts(config: Config, tmp_path: Path, tamper: Tamper, expected: set[str]) -> None:
    before = keys(config)
    tamper(tmp_path)
    assert differing(before, keys(config)) == expected


def test_names_and_folders_of_corpus_files_do_not_count(config: Config, tmp_path: Path) -> None:
    before = keys(config)
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "moved" / "a.jsonl").rename(tmp_path / "moved" / "0.jsonl")
    paths = ["moved/0.jsonl", str(tmp_path / "moved" / "b.jsonl")]
    moved = changed(changed(config, "corpus.paths", paths), "evaluation.general_paths", "moved/general.jsonl")
    assert differing(before, keys(moved)) == set()
    (tmp_path / "moved" / "general.jsonl").rename(tmp_path / "general.jsonl")
    folder = changed(changed(config, "corpus.paths", "moved"), "evaluation.general_paths", ["general.jsonl"])
    assert differing(before, keys(folder)) == set()


def test_the_order_of_corpus_files_counts(config: Config) -> None:
    turned = changed(config, "corpus.paths", ["data/b.jsonl", "data/a.jsonl"])
    assert differing(keys(config), keys(turned)) == {"domain.listing", *DOMAIN}


def test_text_measured_as_general_text_is_left_out_of_training(config: Config) -> None:
    without = changed(config, "evaluation.general_paths", [])
    assert differing(keys(config), keys(without)) == {"general", "general.listing", *DOMAIN}


def test_all_spellings_of_a_cleaning_block_give_the_same_keys(config: Config) -> None:
    short, long = (["symbols"], [{"symbols": {"max_bullets": 0.9, "min_mean_word": 3.0}}])
    one, other = (keys(changed(config, "corpus.cleaning", cleaning)) for cleaning in (short, long))
    assert differing(one, other) == set()


def test_the_folder_of_the_model_does_not_count(config: Config, tmp_path: Path) -> None:
    shutil.copytree(config.model.path, tmp_path / "copy")
    for name, value in (
        ("model.path", str(tmp_path / "copy")),
        ("model.revision", "v2"),  # a model in a local folder has no revisions
        ("model.tokenizer", str(tmp_path / "copy")),
        ("model.trust_remote_code", True),
    ):
        assert differing(keys(config), keys(changed(config, name, value))) == set(), name


def test_another_tokenizer_counts(config: Config, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("[PAD]\n")
    other = changed(config, "model.tokenizer", str(tmp_path / "tokenizer"))
    assert differing(keys(config), keys(other)) == ALL - LISTINGS


def test_pairs_and_their_corpus_count_by_content(config: Config, tmp_path: Path) -> None:
    for name, value in PAIRS.items():
        config = given(config, name, value)
    shutil.copy("data/a.jsonl", "data/copy.jsonl")
    Path("data/more.jsonl").write_text('{"label": "q", "body": "d", "text": "t"}\n')
    assert differing(keys(config), keys(given(config, "retrieval.pairs", "data/copy.jsonl"))) == set()
    for name in ("retrieval.pairs", "retrieval.corpus"):
        assert differing(keys(config), keys(given(config, name, "data/more.jsonl"))) == RETRIEVED
