"""Tests how the keys of stages depend on things outside the configuration, such as packages and the content of files.

A key must change if the result of its stage changes.
"""

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import (
    Config,
    CorpusConfig,
    EnsembleConfig,
    EvaluationConfig,
    EvaluationSet,
    ExportConfig,
    GenerateConfig,
    MergeConfig,
    MethodConfig,
    MixtureConfig,
    ModelConfig,
    MtebConfig,
    ObjectiveConfig,
    OwnMtebTask,
    RetrievalConfig,
    SelectConfig,
    SourceConfig,
    StorageConfig,
    SynthesizeConfig,
    TaskConfig,
    TrainingConfig,
)
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.manifest import build_manifest, items_of, read_slice, slices_of
from adapt.evaluate.benchmark import mteb_tasks
from adapt.job import JOBS
from adapt.job.measuring_jobs import ACTIONS, change_vocabulary
from adapt.job.training_jobs import dapt_stages, tapt_stages
from adapt.method.distill import DistillOptions
from adapt.method.lora.method import LoraOptions
from adapt.runner import Stage
from adapt.runner import stage as stage_module
from adapt.runner.digest import Digests
from adapt.runner.stage import DECIDING, RECORDED
from adapt.stage.context import Context
from adapt.stage.finetuning import PrepareTask
from adapt.stage.text_sources import TaskSplit, TaskTexts
from adapt.support.errors import AdaptError
from tests.stage.test_values import KINDS
from tests.test_layers import ROOT, imports

pytestmark = pytest.mark.heavy

TEXT = json.dumps({"text": "a text", "label": "a"})
NAMES = ("a", "b", "general", "replay", "pool", "questions", "train", "dev", "test")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns a configuration for all jobs: two sources, general and replayed text, pool, evaluation set and task."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mteb_tasks, "missing_packages", lambda packages: "")
    for folder in ("data", "model", "decoder"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 128}))
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}
    (tmp_path / "decoder" / "config.json").write_text(json.dumps(llama))
    for name in ("model.safetensors", "tokenizer.json", "special_tokens_map.json"):
        (tmp_path / "model" / name).write_text(name)
        (tmp_path / "decoder" / name).write_text(name)
    for name in NAMES:
        (tmp_path / "data" / f"{name}.jsonl").write_text(f"{TEXT.replace('a text', f'text of {name}')}\n{TEXT}\n")
    sources = [SourceConfig(name, paths=f"data/{name}.jsonl") for name in ("a", "b")]
    return Config(
        model=ModelConfig(path="model"),
        corpus=CorpusConfig(
            sources=sources,
            cleaning=["fix_unicode", "language"],
            deduplicate="near",
            decontaminate=[EvaluationSet("questions", "data/questions.jsonl")],
        ),
        mixture=MixtureConfig(replay_paths="data/replay.jsonl"),
        method=MethodConfig(kind="das"),
        training=TrainingConfig(sequence_length=64),
        evaluation=EvaluationConfig(sequence_length=64, general_paths="data/general.jsonl"),
        task=TaskConfig(name="one", train="data/train.jsonl", dev="data/dev.jsonl", test="data/test.jsonl", domain="a"),
        select=SelectConfig(kind=["dsir", "knn", "classifier"], pool_paths="data/pool.jsonl", per_example=1),
        merge=MergeConfig(models=["model"]),
        ensemble=EnsembleConfig(models=["model", "model/"]),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


@dataclass(frozen=True)
class Seen:
    """A stage's class, and its key and configuration at the time of the test."""

    kind: type[Stage[Any]]
    key: str
    what: dict[str, Any]


MADE_OF_JOBS = {"Trial", "Search", "Confirm", "Push", "SeedLook"}
"""Classes of stages that run whole jobs or run after jobs. They belong to no single job. `tests/tuning`, `tests/chain`
and `tests/stage/test_push_model.py` test their keys."""


def stages(config: Config) -> dict[str, Seen]:
    """Returns the stages of all jobs, keyed by the names of the inputs that lead to them: `dapt/training/corpora.a`."""
    found: dict[str, Seen] = {}

    def walk(way: str, stage: Stage[Any]) -> None:
        found[way] = Seen(type(stage), stage.key, dict(stage.what()))
        for name, needed in stage.inputs.items():
            walk(f"{way}/{name}", needed)

    for name, job in JOBS.items():
        taught = {"method": MethodConfig("distill"), "method_options": DistillOptions(teachers=["model"])}
        walk(name, job.final(Context.of(replace(config, **(taught if name == "distil" else {})))))
    plain = replace(config, method=MethodConfig())  # because LoRA would freeze new weights
    headed = replace(plain, model=replace(config.model, head="new"))
    walk("dapt with a new head", JOBS["dapt"].final(Context.of(headed)))
    pairs = RetrievalConfig(pairs="data/a.jsonl", query_field="text", positive_field="label")
    walk("dapt with pairs", JOBS["dapt"].final(Context.of(replace(config, retrieval=pairs))))
    own = MtebConfig(own=[OwnMtebTask("own", "classification", test="data/a.jsonl", train="data/b.jsonl")])
    vectors = replace(config, mteb=own, export=ExportConfig(sentence_transformers="mean"))
    walk("dapt with benchmarks", JOBS["dapt"].final(Context.of(vectors)))
    weighed = replace(config, objective=ObjectiveConfig("difference"), method=MethodConfig())
    walk("dapt with weighed words", JOBS["dapt"].final(Context.of(weighed)))
    redrawn = replace(plain, model=replace(config.model, reinitialize_top=1))
    walk("dapt with new top layers", JOBS["dapt"].final(Context.of(redrawn)))
    decoder = replace(config, model=ModelConfig("decoder", attention="bidirectional"), method=MethodConfig())
    walk(
        "dapt of a turned decoder", JOBS["dapt"].final(Context.of(replace(decoder, objective=ObjectiveConfig("mntp"))))
    )
    generated = replace(
        config,
        mixture=MixtureConfig(replay_kind="decoder"),
        generate=GenerateConfig(generator="decoder", prompts="data/pool.jsonl", max_length=100),
        synthesize=SynthesizeConfig(generator="decoder"),
    )
    walk("dapt with generated text", JOBS["dapt"].final(Context.of(generated)))
    for action in set(ACTIONS) - {config.vocabulary.action}:
        asked = replace(config, vocabulary=replace(config.vocabulary, action=action, init="distill", warmup_steps=1))
        walk(f"vocabulary {action}", change_vocabulary(Context.of(asked)))
    return found


def test_the_table_lists_all_kinds_of_stages(config: Config) -> None:
    corda = replace(config, method=MethodConfig("lora"), method_options=LoraOptions(kind="corda"))
    # the methods EWC and CorDA need additional stages
    methods = [config, replace(config, method=MethodConfig("ewc")), corda]
    seen = {stage.kind for each in methods for stage in stages(each).values()}
    assert {kind.__name__ for kind in KINDS} - MADE_OF_JOBS == {kind.__name__ for kind in seen}


def test_a_new_version_changes_the_keys_of_its_stages_and_their_users(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stages(config)
    monkeypatch.setattr(PrepareTask, "version", 99)
    after = stages(config)
    changed = {way for way in before if before[way].key != after[way].key}
    tasks = [way for way in before if before[way].kind is PrepareTask]
    assert changed == {way for way in before if any(task == way or task.startswith(f"{way}/") for task in tasks)}
    assert {"finetune", "evaluate", "sequence", "advise"} <= changed
    assert changed.isdisjoint({"dapt", "tapt"})


# --- packages

CLEANED = {
    "prepare",
    "dedup",
    "filter",
    "synthesize",
    "select",
    "target",
    "evidence",
    "embedder",
    "embed",
    "enough",
    "vocabulary",
    "extend",
    "trim",
    "scratch",
}
USED: dict[str, set[str]] = {
    "ftfy": CLEANED,
    "py3langid": CLEANED,
    "rensa": {"dedup", "filter", "select"},
    "tokenizers": {"prepare", "task", "evidence", "select", "vocabulary", "extend", "trim", "scratch"},
    "scikit-learn": {"neighbours", "similarity", "select", "selection", "embedder", "embed", "benchmark"},
    "mteb": {"benchmark"},
    "lm-eval": set(),  # the configuration has no decoder
    "peft": set(),
    "faiss-cpu": {"index"},
    "optuna": set(),
    **{
        name: set() for name in ("resiliparse", "pypdfium2", "pylatexenc", "docutils", "markdown-it-py")
    },  # the configuration reads no files of documents
}
"""For each package, the kinds of stages whose keys contain its version in the configuration above."""


def in_version(monkeypatch: pytest.MonkeyPatch, package: str, version: str) -> None:
    real = stage_module.package_version
    monkeypatch.setattr(stage_module, "package_version", lambda name: version if name == package else real(name))


def naming(config: Config, package: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the kinds of stages whose keys change with the version of a package."""
    before = stages(config)
    with monkeypatch.context() as patch:
        in_version(patch, package, "99.0.0")
        after = stages(config)
    assert all((before[way].what == after[way].what) or before[way].key != after[way].key for way in before)
    return {before[way].kind.kind for way in before if before[way].what != after[way].what}


@pytest.mark.parametrize("package", DECIDING)
def test_keys_contain_versions_of_packages_that_determine_results(
    config: Config, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert naming(config, package, monkeypatch) == USED[package]


@pytest.mark.parametrize(("mode", "package"), [("lora", "peft"), ("feature_extraction", "scikit-learn")])
def test_the_package_of_a_mode_of_fine_tuning(
    config: Config, mode: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(config, finetune=replace(config.finetune, mode=mode))
    assert naming(other, package, monkeypatch) == {*USED[package], "finetune"}


@pytest.mark.parametrize(("package", "still"), [("ftfy", set()), ("py3langid", set()), ("rensa", {"filter", "select"})])
def test_an_unused_package_changes_no_key(
    config: Config, package: str, still: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the keys of a configuration without deduplication of the corpus.

    `rensa` still matters, because a selection removes near copies.
    """
    corpus = replace(config.corpus, cleaning=["length"], deduplicate="exact")
    assert naming(replace(config, corpus=corpus), package, monkeypatch) == still


def test_only_the_significant_parts_of_a_version_change_keys(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(rest: list[str]) -> set[str]:
        """Returns the keys of all stages, if each package's version is its fixed significant parts and then `rest`."""
        numbers = {name: (["99", "1", "2"][: DECIDING.get(name, 0)] + rest)[:3] for name in (*DECIDING, *RECORDED)}
        monkeypatch.setattr(stage_module, "package_version", lambda name: ".".join(numbers[name]))
        return {stage.key for stage in stages(config).values()}

    assert keys(["3", "4", "5"]) == keys(["6", "7", "8"])


FOLLOWING = {
    *(
        "torch",
        "transformers",
        "numpy",
        "scipy",
        "deepspeed",
        "xxhash",
        "model2vec",
    ),  # these packages compute the configured operations, up to rounding
    # these packages affect how work is done or shown
    *("ray", "rich", "annotated_types", "yaml", "huggingface_hub", "mlflow", "wandb"),
    *("threadpoolctl", "psutil"),  # these packages affect how work is done
    *("pyarrow", "datasets", "fsspec", "safetensors", "pydantic"),  # these packages read and write file formats
    *("jinja2", "markupsafe", "matplotlib", "tensorboardX"),  # these packages render reports
    "fastwarc",  # this package reads a file format
    *("aiohttp", "grpc", "requests"),  # these packages report errors of connections to a cluster
    # these packages write and check exported files
    *("gguf", "onnx_ir", "onnxruntime", "joblib", "sentence_transformers"),
    *("IPython", "boto3", "botocore", "packaging"),  # these packages show notebooks, and check the machine
}
"""Packages that do not affect results. A new package belongs in this set, or in DECIDING and its stages' keys."""


IMPORTED = {"lm-eval": "lm_eval", "scikit-learn": "sklearn", "faiss-cpu": "faiss", "markdown-it-py": "markdown_it"}
"""Module names of packages that are imported under another name than the package's."""


def test_every_package_is_classified() -> None:
    found = set()
    for file in (ROOT / "adapt").rglob("*.py"):
        path = str(file.relative_to(ROOT))
        found |= {each.name.split(".")[0] for each in imports(file.read_text(encoding="utf-8"), path)}
    decide = {IMPORTED.get(package, package) for package in DECIDING}
    assert found - sys.stdlib_module_names - {"adapt"} == FOLLOWING | decide


# --- files

Edit = Callable[[Path], object]


def renamed(name: str) -> Edit:
    return lambda file: file.rename(file.with_name(name))


def rewritten(change: Callable[[bytes], bytes]) -> Edit:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def packed(file: Path) -> None:
    file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()


EDITS: dict[str, tuple[Edit, bool]] = {
    "nothing": (lambda file: None, False),
    "its time": (lambda file: os.utime(file, (5, 5)), False),
    "its name": (renamed("y.jsonl"), False),
    "another name of its format": (renamed("x.ndjson"), False),
    "a file beside it": (lambda file: file.with_name("notes.doc").write_text("x"), False),
    "its format: text": (renamed("x.txt"), True),
    "its format: csv": (renamed("x.csv"), True),
    "its compression": (renamed("x.jsonl.gz"), True),
    "a letter": (rewritten(lambda content: content.replace(b"text of", b"test of")), True),
    "a letter, its time set back": (rewritten(lambda content: content.replace(b"text of", b"test of")), True),
    "another field": (rewritten(lambda content: content.replace(b'"text"', b'"body"', 1)), True),
    "the order of its records": (rewritten(lambda content: b"".join(content.splitlines(True)[::-1])), True),
    "a record less": (rewritten(lambda content: content.splitlines(True)[0]), True),
    "packed": (packed, True),  # Keys depend on the bytes of a file, so that the file need not be decompressed.
}
"""Possible changes of a file, and for each change whether it must change keys."""


def texts_in(folder: Path) -> list[str] | str:
    """Reads the texts of a folder. Returns the error message if the folder cannot be read."""
    corpus = CorpusConfig(paths=str(folder))
    try:
        manifest = build_manifest(corpus, Digests(folder.parent / "unused"))
        slices = [each for item in items_of(manifest, corpus) for each in slices_of(item)]
        return [str(text) for each in slices for text in read_slice(each, corpus) if not isinstance(text, Bad)]
    except AdaptError as error:
        return type(error).__name__


def in_folders(config: Config, tmp_path: Path) -> Config:
    """Returns the configuration with a folder in place of each file."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / "data" / f"{name}.jsonl").rename(tmp_path / name / "x.jsonl")
    return replace(
        config,
        corpus=replace(
            config.corpus,
            sources=[replace(source, paths=source.name) for source in config.corpus.sources],
            decontaminate=[EvaluationSet("questions", "questions")],
        ),
        mixture=MixtureConfig(replay_paths="replay"),
        evaluation=replace(config.evaluation, general_paths="general"),
        task=replace(config.task, train="train", dev="dev", test="test"),
        select=replace(config.select, pool_paths="pool"),
    )


def corpora_keys(config: Config) -> dict[str, str]:
    """Returns the keys of the stages that read files, which are corpora, evaluation sets and tasks."""
    context = Context.of(config)
    splits = {split: TaskSplit.of(config.task, split, context.digests) for split in ("train", "dev", "test")}
    training, general = dapt_stages(context).training, dapt_stages(context).general
    assert training.replay
    assert general
    return {
        "a": training.corpora["a"].key,
        "b": training.corpora["b"].key,
        "questions": training.corpora["a"].key,
        "replay": training.replay.key,
        "general": general.key,
        "pool": next(_ways(tapt_stages(context), "select")).key,
        **{name: TaskTexts(name, (split,)).key for name, split in splits.items()},
    }


def _ways(stage: Stage[Any], kind: str) -> Iterator[Stage[Any]]:
    if stage.kind == kind:
        yield stage
    for needed in stage.inputs.values():
        yield from _ways(needed, kind)


@pytest.mark.parametrize("name", EDITS)
def test_a_key_changes_when_the_input_changes(
    config: Config, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "adapt.task.prepare_task.check_task", lambda task: None
    )  # This test does not need readable text.
    config = in_folders(config, tmp_path)
    edit, changes = EDITS[name]
    before = corpora_keys(config)
    for text in NAMES:
        read = texts_in(tmp_path / text)
        (file,) = (tmp_path / text).glob("x.*")
        times = file.stat().st_atime_ns, file.stat().st_mtime_ns
        edit(file)
        if "set back" in name:
            os.utime(file, ns=times)
        after, again = corpora_keys(config), texts_in(tmp_path / text)
        assert (before[text] != after[text]) is changes, text
        assert changes or read == again, text  # Equal keys must mean equal results.
        # If a key changes, the texts must have changed too. The exception is `packed`, which changes only the bytes.
        assert read != again or not changes or name == "packed", text
        before = after
