"""Tests of merges in chains: merges of models from other stages, and stages that start from a merge."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import Chain, build_chain, trainings
from adapt.runner import Done
from adapt.support.errors import ConfigError
from tests.merge.folders import extended, folder_of, moved, weights_in
from tests.samples import labelled, sentences, write


def common(folder: Path, model: Path) -> dict[str, Any]:
    lengths = {"training.sequence_length": 64, "evaluation.sequence_length": 64}
    return {"model.path": str(model), "storage.root": str(folder / "runs"), **lengths}


def chain_of(folder: Path, content: dict[str, Any]) -> Chain:
    file = folder / "chain.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return build_chain(expand_chain(read_chain(str(file))))


@pytest.fixture
def chain(tmp_path: Path, tiny_bert: Path) -> Chain:
    """Returns a chain with training runs on two domains, merges of their models, and a fine-tuning run on a task."""
    for number, name in enumerate(("one", "two")):
        write(tmp_path / f"{name}.jsonl", [{"text": text} for text in sentences(20, number)])
    for split in ("train", "dev", "test"):
        write(tmp_path / f"{split}.jsonl", labelled(8, len(split)))
    splits = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "dev", "test")}
    content = {
        "common": common(tmp_path, tiny_bert),
        "sets": {"domain": ["one", "two"], "share": ["0.25", "0.5"]},
        "stages": {
            "dapt": {"job": "dapt", "for": "domain", "corpus.paths": f"{tmp_path}/{{domain}}.jsonl"},
            "both": {"job": "merge", "merge": {"kind": "ties", "models": ["dapt[one]", "dapt[ two ]"]}},
            "mixed": {"job": "merge", "for": "share", "merge": {"models": ["both"], "shares": ["{share}"]}},
            "tuned": {
                "job": "finetune",
                "from": "mixed[0.25]",
                "task": {"name": "toy", **splits},
                "finetune.seeds": [0],
            },
            "compared": {
                "job": "evaluate",
                "corpus.paths": f"{tmp_path}/one.jsonl",
                "comparison.models": [{"name": "both", "path": "both"}],
            },
        },
    }
    return chain_of(tmp_path, content)


def test_stages_can_be_merged_and_a_merge_can_be_started_from(chain: Chain) -> None:
    goals = {goal.label: goal.stage for goal in chain.goals}
    assert [label for label in goals if not label.startswith("dapt")] == [
        *("both", "mixed[0.25]", "mixed[0.5]", "tuned[0]", "compared"),
    ]
    exports: dict[str, Any] = {name: goals[f"dapt[{name}]"] for name in ("one", "two")}
    made = [exports[name].training.key for name in ("one", "two")]
    both, mixed = goals["both"], goals["mixed[0.25]"]
    assert {name: stage.key for name, stage in both.inputs.items()} == {
        "models.0.training": made[0],
        "models.1.training": made[1],
    }
    assert {name: stage.key for name, stage in mixed.inputs.items()} == {"models.0.training": both.key}
    assert mixed.key != goals["mixed[0.5]"].key
    assert goals["tuned[0]"].inputs["start.training"].key == mixed.key
    assert trainings(goals["tuned[0]"]) == (*made, both.key, mixed.key)
    assert "models.both.losses" in goals["compared"].inputs


def test_models_of_the_chain_are_read_from_their_stages_folders(chain: Chain, tmp_path: Path, tiny_bert: Path) -> None:
    """Writes random models as the results of the training runs, which are not executed.

    The merged weights are compared with the expected weights.
    """
    weights = weights_in(tiny_bert)
    models = [folder_of(tmp_path / f"model-{seed}", moved(weights, seed), like=tiny_bert) for seed in (1, 2)]
    goals: dict[str, Any] = {goal.label: goal.stage for goal in chain.goals}
    records = {}
    for name, model in zip(("one", "two"), models, strict=True):
        training = goals[f"dapt[{name}]"].training
        folder = chain.store.folder(training.kind, training.name, training.key)
        shutil.copytree(model, folder / "model")
        records[training.key] = pretended(training, folder)
    both = goals["both"]
    for stage in (both, goals["mixed[0.25]"]):
        done = Done({needed.key: records[needed.key] for needed in stage.inputs.values()})
        folder = chain.store.folder(stage.kind, stage.name, stage.key)
        outcome = stage.run(folder, done)
        assert outcome.result.tensors > 10
        records[stage.key] = pretended(stage, folder, outcome.result)
    start = goals["tuned[0]"].start.made(Done(records))
    found, base, other = (weights_in(path) for path in (start.model, tiny_bert, records[both.key].path))
    assert all(torch.equal(found[name], one.lerp(other[name], 0.25)) for name, one in base.items())


def test_stages_after_a_merge_use_the_tokens_of_the_extended_model(tmp_path: Path, tiny_bert: Path) -> None:
    """Covers a model with added tokens on disk, and a model to which a stage of the chain adds tokens."""
    for number, name in enumerate(("one", "train", "dev", "test")):
        write(tmp_path / f"{name}.jsonl", labelled(8, number))
    model = extended(tmp_path / "more", tiny_bert, ["qubit"])
    splits = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "dev", "test")}
    task = {"job": "finetune", "task": {"name": "toy", **splits}, "finetune.seeds": [0]}
    content = {
        "common": {**common(tmp_path, tiny_bert), "corpus.paths": f"{tmp_path}/one.jsonl"},
        "stages": {
            "words": {"job": "vocabulary", "vocabulary": {"action": "extend", "size": 5}},
            "dapt": {"job": "dapt", "from": "words"},
            "made": {"job": "merge", "merge": {"models": ["dapt"]}},
            "found": {"job": "merge", "merge": {"models": [str(model)]}},
            "same": {"job": "merge", "from": "words", "merge": {"models": ["dapt"]}},
            **{f"tuned_{name}": {**task, "from": name} for name in ("made", "found", "same")},
        },
    }
    goals: dict[str, Any] = {goal.name: goal.stage for goal in chain_of(tmp_path, content).goals}
    starts = {name: goals[f"tuned_{name}"].start for name in ("made", "found", "same")}
    assert starts["made"].vocabulary is starts["same"].vocabulary is goals["words"]
    assert starts["found"].vocabulary is None
    assert starts["found"].pretrained.tokenizer == model
    assert all(start.training is goals[name] for name, start in starts.items())
    assert goals["same"].extended is None


def pretended(stage: Any, folder: Path, result: Any = None) -> Any:
    from adapt.runner import Record
    from adapt.runner.record import plain_values

    metrics = (
        plain_values(result)
        if result
        else {
            **dict.fromkeys(("steps", "tokens", "tokens_per_s", "data_wait_share", "device_seconds"), 1),
            **dict.fromkeys(("flops", "mfu", "peak_memory_bytes")),
            "transductive": False,
        }
    )
    return Record(stage.kind, stage.name, stage.key, 1, dict(stage.what()), {}, metrics, {}, {}, {}, {}, "", folder)


def test_a_merge_with_several_shares_cannot_be_started_from(tmp_path: Path, tiny_bert: Path) -> None:
    content = {
        "common": common(tmp_path, tiny_bert),
        "stages": {
            "mixed": {"job": "merge", "merge": {"models": [str(tiny_bert)], "shares": [0.1, 0.2]}},
            "more": {"job": "merge", "merge": {"models": ["mixed"]}},
        },
    }
    with pytest.raises(ConfigError, match="more uses the model of mixed, but mixed makes several models"):
        chain_of(tmp_path, content)


def test_the_default_experiment_measures_all_models_on_the_same_texts(tmp_path: Path, tiny_bert: Path) -> None:
    """All models are measured on the same texts, so that the report can show all models in one figure.

    Merges of the same models with different shares (mixing weights) use the same training runs.
    """
    for number, name in enumerate(("mine", "wiki")):
        write(tmp_path / f"{name}.jsonl", [{"text": text} for text in sentences(40, number)])
    let = {"corpus": f"{tmp_path}/mine.jsonl", "general": f"{tmp_path}/wiki.jsonl", "model": str(tiny_bert)}
    lengths = {"training.sequence_length": 64, "evaluation.sequence_length": 64}
    recipe = Path(__file__).resolve().parents[2] / "jobs" / "recipes" / "forgetting.yaml"
    source = read_chain(str(recipe), let, {**lengths, "storage.root": str(tmp_path / "runs")})
    goals = build_chain(expand_chain(source, {"rate": ["1e-4"], "replay": ["0", "0.1"]})).goals
    stages: dict[str, list[Any]] = {}
    for goal in goals:
        stages.setdefault(goal.name, []).append(goal.stage)
    assert {name: len(found) for name, found in stages.items()} == {"dapt": 2, "mixed": 6, "measured": 6}
    texts = {(export.domain.key, export.general.key) for export in stages["dapt"]}
    assert len(texts) == 1
    for compare in stages["measured"]:
        for model in compare.models.values():
            assert [text.key for text in model.losses.corpora.values()] == [*next(iter(texts))]
        assert compare.models["mixed"].losses.start.training in stages["mixed"]
    assert {merged.merging.shares for merged in stages["mixed"]} == {(0.3,), (0.5,), (0.7,)}
    assert len({compare.models["base"].losses.key for compare in stages["measured"]}) == 1
