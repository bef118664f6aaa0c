"""The stages of labelled tasks: what their keys depend on. Nothing here trains."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import (
    Config,
    FinetuneConfig,
    ModelConfig,
    SourceConfig,
    StorageConfig,
    TaptConfig,
    TaskConfig,
    TrainingConfig,
)
from adapt.config.kinds import KINDS
from adapt.errors import ConfigError
from adapt.parse import check
from adapt.runner import Record, Stage
from adapt.stages import Catalogue, Start
from adapt.stages.base import START
from adapt.stages.corpora import REPLAY

# Of `finetune`, as keys of stages; `task` and `tapt` below.
TASK: dict[str, tuple[Any, set[str]]] = {
    "kind": ("multi_label", {"task", "run"}),
    "text_field": ("body", {"task", "run"}),
    "pair_field": ("label", {"task", "run"}),
    "label_field": ("text", {"task", "run"}),
    "id_field": ("text", {"task", "run"}),
    "metric": ("accuracy", {"task", "run"}),
    "name": ("renamed", set()),
    "domain": ("cs", set()),
    "max_bad_fraction": (0.5, set()),
}
FINETUNE: dict[str, tuple[Any, set[str]]] = {
    "mode": ("lora", {"run"}),
    "epochs": (1, {"run"}),
    "patience": (1, {"run"}),
    "learning_rate": (1e-3, {"run"}),
    "warmup_fraction": (0.5, {"run"}),
    "weight_decay": (0.5, {"run"}),
    "batch_size": (2, {"run"}),
    "max_length": (20, {"run"}),
    "dropout": (0.5, {"run"}),
    "pooling": ("mean", {"run"}),
    "class_weights": ("balanced", {"run"}),
    "lora_rank": (2, {"run"}),
    "lora_alpha": (2.0, {"run"}),
    "seeds": ([7], set()),
    "cpus_per_seed": (0.5, set()),
    "gpus_per_seed": (0.5, set()),
    "save_model": (True, {"run"}),
}
TAPT: dict[str, tuple[Any, set[str]]] = {
    "batch_examples": (8, {"training", "after", "export"}),
    "transductive": (True, {"text", "training", "after", "export"}),
    "pool_paths": ("data/pool.jsonl", {"text", "training", "after", "export"}),
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A task of a few examples, and a model as far as keys go."""
    monkeypatch.chdir(tmp_path)
    model, data = tmp_path / "model", tmp_path / "data"
    model.mkdir()
    data.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 128}))
    for name in ("model.safetensors", "tokenizer.json"):
        (model / name).write_text(name)
    for name in ("train", "dev", "test", "pool", "more"):
        (data / f"{name}.jsonl").write_text(json.dumps({"text": f"text of {name}", "label": "a", "body": "b"}) + "\n")
    return Config(
        model=ModelConfig(path=str(model)),
        task=TaskConfig(name="one", train="data/train.jsonl", dev="data/dev.jsonl", test="data/test.jsonl"),
        training=TrainingConfig(epochs=2.0, sequence_length=64),
        evaluation=replace(Config().evaluation, sequence_length=64),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def keys_of_run(config: Config) -> dict[str, str]:
    run = Catalogue(config).finetuned(3)
    return {"run": run.key, "task": run.inputs["task"].key}


def keys_of_tapt(config: Config) -> dict[str, str]:
    export = Catalogue(config).tapt()
    return {"export": export.key, **{name: stage.key for name, stage in export.inputs.items()}}


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one if one[name] != other[name]}


def test_every_field_is_known() -> None:
    contents = {"train", "dev", "test", "pool_paths", "pool_text_field", "random_per_example"}
    sections = ((TaskConfig, TASK), (FinetuneConfig, FINETUNE), (TaptConfig, TAPT))
    for section, table in sections:
        assert {field.name for field in fields(section)} - contents == set(table) - contents


@pytest.mark.parametrize("name", TASK)
def test_fields_of_a_task(config: Config, name: str) -> None:
    value, expected = TASK[name]
    other = replace(config, task=replace(config.task, **{name: value}))
    assert differing(keys_of_run(config), keys_of_run(other)) == expected


@pytest.mark.parametrize("name", FINETUNE)
def test_fields_of_fine_tuning(config: Config, name: str) -> None:
    value, expected = FINETUNE[name]
    other = replace(config, finetune=replace(config.finetune, **{name: value}))
    assert differing(keys_of_run(config), keys_of_run(other)) == expected


@pytest.mark.parametrize("name", TAPT)
def test_fields_of_tapt(config: Config, name: str) -> None:
    value, expected = TAPT[name]
    other = replace(config, tapt=replace(config.tapt, **{name: value}))
    assert differing(keys_of_tapt(config), keys_of_tapt(other)) == expected


def test_the_size_of_the_batch_counts_where_examples_do_not_give_it(config: Config) -> None:
    def change(batch_examples: int | None) -> set[str]:
        given = replace(config, tapt=TaptConfig(batch_examples=batch_examples))
        other = replace(given, training=replace(given.training, global_batch_size=16))
        return differing(keys_of_tapt(given), keys_of_tapt(other))

    assert change(256) == set()
    assert change(None) == {"training", "after", "export"}


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_content_of_the_files_counts(config: Config, split: str, tmp_path: Path) -> None:
    before, tapt = keys_of_run(config), keys_of_tapt(config)
    with (tmp_path / "data" / f"{split}.jsonl").open("a") as file:
        file.write('{"text": "more", "label": "b"}\n')
    assert differing(before, keys_of_run(config)) == {"run", "task"}
    # dev and test say which texts of train are left out, so they count for what is trained on
    measured = {"domain", "before"} if split == "dev" else set()
    assert differing(tapt, keys_of_tapt(config)) == {"text", "training", "after", "export", *measured}


def test_each_seed_is_a_stage_and_the_scores_are_of_them_all(config: Config) -> None:
    scores = Catalogue(replace(config, finetune=FinetuneConfig(seeds=[4, 7]))).scores()
    assert list(scores.inputs) == ["seed-4", "seed-7"]
    assert len({stage.key for stage in scores.inputs.values()}) == 2
    assert scores.inputs["seed-4"].key == Catalogue(config).finetuned(4).key


def lineage(stage: Stage) -> list[str]:
    return [stage.stage, *(name for needed in stage.inputs.values() for name in lineage(needed))]


def test_a_model_that_another_stage_makes(config: Config) -> None:
    first = Catalogue(config)
    training = first.tapt().inputs["training"]
    start = Start(training, first.pretrained)
    further = Catalogue(replace(config, seed=1), start).tapt()
    assert further.inputs["training"].inputs[START] is training
    assert further.inputs["training"].what["model"] is None
    assert further.inputs["before"].inputs["training"] is training
    run = Catalogue(config, start).finetuned(0)
    assert run.inputs[START] is training
    assert run.key != first.finetuned(0).key


def test_dev_and_test_text_stay_out_unless_it_is_asked_for(config: Config) -> None:
    def read(**tapt: Any) -> list[dict[str, Any]]:
        text = Catalogue(replace(config, tapt=TaptConfig(**tapt))).tapt().inputs["text"]
        return [text.inputs["texts"].what[name] for name in ("splits", "without")]

    assert read() == [["train"], ["dev", "test"]]
    assert read(transductive=True) == [["train", "dev", "test"], []]


def test_a_pool_is_decontaminated(config: Config) -> None:
    curated = Catalogue(replace(config, tapt=TaptConfig(pool_paths="data/pool.jsonl"))).tapt().inputs["text"]
    assert set(curated.inputs) == {"one", "(pool)"}
    assert curated.inputs["(pool)"].inputs["unseen"].what["splits"] == ["dev", "test"]
    drawn = TaptConfig(pool_paths="data/pool.jsonl", random_per_example=2)
    random = Catalogue(replace(config, tapt=drawn)).tapt().inputs["text"].inputs["(pool)"].inputs["texts"]
    assert random.stage == "select"
    assert random.inputs["unseen"].what["splits"] == ["dev", "test"]


def test_several_tasks_are_sources_of_one_training(config: Config) -> None:
    more = replace(config.task, name="two", train="data/more.jsonl")
    training = Catalogue(replace(config, tasks=[more])).tapt().inputs["training"]
    assert list(training.inputs) == ["one", "two"]
    assert training.what["mixture"]["sources"] == ["one", "two"]
    for text in training.inputs.values():  # what the one trains on may be what the other is tested on
        assert len(text.inputs["texts"].what["others"]) == 1


def test_several_tasks_draw_for_all_their_examples(config: Config) -> None:
    more = replace(config.task, name="two", train="data/more.jsonl")
    drawn = TaptConfig(pool_paths="data/pool.jsonl", random_per_example=2)
    training = Catalogue(replace(config, tasks=[more], tapt=drawn)).tapt().inputs["training"]
    random = training.inputs["(pool)"].inputs["texts"]
    assert [random.inputs[name].name for name in ("task", "task-1")] == ["one", "two"]


def test_tapt_leaves_the_settings_of_the_domain_alone(config: Config) -> None:
    sources = [SourceConfig("a", paths="data/more.jsonl", weight=1.0), SourceConfig("b", paths="x", weight=2.0)]
    for corpus in (replace(config.corpus, sources=sources), replace(config.corpus, streaming=True)):
        catalogue = Catalogue(replace(config, corpus=corpus))
        training = catalogue.tapt().inputs["training"]
        assert training.key == Catalogue(config).tapt().inputs["training"].key
        assert not catalogue.config.corpus.streaming


def test_general_text_is_mixed_into_tapt(config: Config) -> None:
    mixture = replace(config.mixture, replay_paths="data/more.jsonl")
    training = Catalogue(replace(config, mixture=mixture)).tapt().inputs["training"]
    assert list(training.inputs) == ["one", REPLAY]
    assert training.inputs[REPLAY].inputs["unseen"].what["splits"] == ["dev", "test"]


def test_all_that_tapt_trains_on_leaves_out_what_it_measures(config: Config) -> None:
    mixture, tapt = replace(config.mixture, replay_paths="data/more.jsonl"), TaptConfig(pool_paths="data/pool.jsonl")
    evaluation = replace(config.evaluation, general_paths="data/pool.jsonl")
    given = replace(config, mixture=mixture, tapt=tapt, evaluation=evaluation)
    for changes, left_out in (({}, ["general", "dev"]), ({"transductive": True}, ["general"])):
        export = Catalogue(replace(given, tapt=replace(tapt, **changes))).tapt()
        measured = {"general": export.inputs["general"].key, "dev": export.inputs["domain"].key}
        texts = [each for each in export.inputs["training"].inputs.values() if each.stage == "prepare"]
        assert len(texts) == 3
        for text in texts:
            found = {n.removeprefix("measured "): s.key for n, s in text.inputs.items() if n.startswith("measured ")}
            assert found == {name: measured[name] for name in left_out}
        assert export.inputs["general"].what["corpus"]["heldout_fraction"] == 0.01  # the pool is its other part
    random = Catalogue(replace(given, tapt=replace(tapt, random_per_example=3))).tapt()
    drawn = random.inputs["training"].inputs["(pool)"].inputs["texts"]
    assert {"measured general", "measured dev"} < drawn.inputs.keys()
    near = replace(given, corpus=replace(config.corpus, deduplicate="near"))
    pool = Catalogue(near).tapt().inputs["training"].inputs["(pool)"]
    assert pool.inputs["dedup"].inputs["unseen"].key == pool.inputs["unseen"].key  # ordinals count the same documents


def prepared(documents: int, tokens: int) -> Record:
    found = {"train_documents": documents, "train_tokens": tokens}
    return Record("prepare", "", "", 1, {}, {}, found, {}, {}, {}, {}, "")


@pytest.mark.parametrize(("examples", "workers", "rows"), [(256, 1, 128), (6, 3, 3), (256, 3, None), (6, 2, None)])
def test_the_sequences_that_examples_fill(config: Config, examples: int, workers: int, rows: int | None) -> None:
    config = replace(config, resources=replace(config.resources, workers=workers))
    texts = {"one": prepared(100, 3200), REPLAY: prepared(10, 100_000)}  # 32 tokens a document, 64 a sequence
    catalogue = Catalogue(replace(config, training=replace(config.training, global_batch_size=48)))
    if rows:
        assert catalogue._sized(examples, texts).config.training.global_batch_size == rows
        return
    with pytest.raises(ConfigError, match=f"which {workers} workers cannot share equally") as caught:
        catalogue._sized(examples, texts)
    assert "tapt.batch_examples" in caught.value.fix


def test_a_part_of_no_pool(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"tapt\.pool_paths is not"):
        Catalogue(replace(config, tapt=TaptConfig(random_per_example=2))).tapt()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": TaskConfig(train="a", dev="b")}, "task: test is empty"),
        ({"task": TaskConfig(name="a b", train="a", dev="b", test="c")}, "name 'a b' cannot name a folder"),
        ({"task": TaskConfig(train="a", dev="b", test="c", metric="entity_f1")}, "metric entity_f1 does not suit kind"),
        ({"tasks": [TaskConfig(name="one", train="a", dev="b", test="c")]}, "two tasks are called 'one'"),
        ({"finetune": FinetuneConfig(seeds=[])}, r"finetune.seeds is \[\]"),
        ({"finetune": FinetuneConfig(seeds=[1, 1])}, r"finetune.seeds is \[1, 1\]"),
        ({"finetune": FinetuneConfig(seeds=[-1])}, r"finetune.seeds is \[-1\]"),
        ({"finetune": FinetuneConfig(seeds=[2**64])}, "finetune.seeds is"),
    ],
)
def test_what_a_task_needs(config: Config, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(replace(config, **wrong), KINDS["finetune"])
