"""Tests ensembles and students: their stages, refused settings, and a chain of training runs with a tiny model."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from transformers import BertConfig, BertForMaskedLM

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import Chain, build_chain, trainings
from adapt.config import (
    Config,
    CorpusConfig,
    EnsembleConfig,
    EvaluationConfig,
    MethodConfig,
    ModelConfig,
    StorageConfig,
    TrainingConfig,
)
from adapt.evaluate.measure_model import trained_on
from adapt.job.job_run import run_stages
from adapt.job.training_jobs import dapt_stages, distil_stages, ensemble_stages
from adapt.method.distill import DistillOptions
from adapt.runner import Finished, Store
from adapt.runner.record import load_record
from adapt.show.blocks import Table
from adapt.stage.context import Context
from adapt.stage.ensemble import spent_device_hours
from adapt.support.errors import ConfigError, ModelError
from tests.model.checkpoints import exchange_tokens
from tests.samples import VOCABULARY, sentences, write
from tests.show.shown import show_result


@pytest.fixture
def config(tmp_path: Path, tiny_bert: Path) -> Config:
    return Config(
        model=ModelConfig(path=str(tiny_bert)),
        corpus=CorpusConfig(
            paths=write(tmp_path / "one.jsonl", [{"text": text} for text in sentences(60, 1)]), heldout_fraction=0.3
        ),
        training=TrainingConfig(sequence_length=64, max_steps=2),
        evaluation=EvaluationConfig(sequence_length=64, bootstrap_samples=50),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )


def sized(folder: Path, like: Path, hidden: int, layers: int = 1) -> str:
    """Writes a random BERT with a tokenizer of another model, and returns its folder."""
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 64}
    made = BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=128, **sizes)
    BertForMaskedLM(made).save_pretrained(folder)
    for file in like.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return str(folder)


def student(config: Config, *teachers: str, **options: Any) -> Context:
    taught = DistillOptions(teachers=list(teachers), **options)
    return Context.of(replace(config, method=MethodConfig("distill"), method_options=taught))


def test_teachers_enter_the_key_by_their_content(config: Config, tmp_path: Path, tiny_bert: Path) -> None:
    large, copy = sized(tmp_path / "large", tiny_bert, 64), tmp_path / "copy"
    copy.mkdir()
    for file in Path(large).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    one, same, other = (distil_stages(student(config, path)).training for path in (large, str(copy), str(tiny_bert)))
    assert one.key == same.key != other.key
    # without teachers, the key equals the key of distillation from the model before the training
    plain = dapt_stages(student(config)).training
    assert "teachers" not in plain.what()


def test_a_student_may_be_smaller_but_not_larger_than_its_teachers(
    config: Config, tmp_path: Path, tiny_bert: Path
) -> None:
    large, small = sized(tmp_path / "large", tiny_bert, 64), sized(tmp_path / "small", tiny_bert, 16)
    training = distil_stages(student(config, large, str(tiny_bert))).training
    assert [str(start.pretrained.model) for start in training.teachers] == [large, str(tiny_bert)]
    with pytest.raises(ModelError, match="imitating a smaller teacher would limit") as refused:
        distil_stages(student(config, large, small))
    assert refused.value.what.startswith(f"distill.teachers: {small} has ")
    assert "a smaller model.path" in refused.value.fix


def test_hidden_states_of_another_width_are_refused(config: Config, tmp_path: Path, tiny_bert: Path) -> None:
    large = sized(tmp_path / "large", tiny_bert, 64)
    with pytest.raises(ModelError, match=r"hidden states of width 64, and model\.path of width 32") as refused:
        distil_stages(student(config, large, of="states"))
    assert "set distill.of to logits" in refused.value.fix
    assert distil_stages(student(config, str(tiny_bert), of="states"))


def test_other_mistakes_are_named_before_anything_runs(config: Config, tmp_path: Path, tiny_bert: Path) -> None:
    large = sized(tmp_path / "large", tiny_bert, 64)
    with pytest.raises(ConfigError, match=r"distill\.teachers names no teacher"):
        distil_stages(student(config))
    with pytest.raises(ModelError, match=r"distill\.teachers: \./none: there is no model folder"):
        distil_stages(student(config, "./none"))
    with pytest.raises(ConfigError, match=r"ensemble\.models names 1 model"):
        ensemble_stages(Context.of(replace(config, ensemble=EnsembleConfig([large]))))
    twice = replace(config, ensemble=EnsembleConfig([large, large]))
    with pytest.raises(ConfigError, match="two models of the comparison are called"):
        ensemble_stages(Context.of(twice))
    exchange_tokens(Path(large))
    for stages, asked in (
        (distil_stages, student(config, large)),
        (ensemble_stages, Context.of(replace(config, ensemble=EnsembleConfig([large, str(tiny_bert)])))),
    ):
        with pytest.raises(ModelError, match=r"has another tokenizer than model\.path"):
            stages(asked)


def chain_of(config: Config, folder: Path) -> Chain:
    """Returns a chain with two seeds, the average of their weights, a student, and their ensemble."""
    training = {"sequence_length": 64, "max_steps": 3, "global_batch_size": 8, "learning_rate": 1e-3}
    members = ["member[1]", "member[2]"]
    content = {
        "common": {
            "model.path": config.model.path,
            "storage.root": config.storage.root,
            "corpus": {"paths": config.corpus.paths, "heldout_fraction": 0.3},
            "training": training,
            "evaluation": {"sequence_length": 64, "bootstrap_samples": 50, "examples": 0},
        },
        "sets": {"seed": ["1", "2"]},
        "stages": {
            "member": {"job": "dapt", "for": "seed", "seed": "{seed}"},
            "average": {"job": "merge", "merge": {"kind": "average", "models": members}},
            "student": {"job": "distil", "seed": 3, "distill": {"teachers": members, "weight": 2.0}},
            "ensemble": {
                "job": "ensemble",
                "ensemble.models": members,
                "comparison.models": [{"name": name, "path": name} for name in ("student", "average")],
            },
        },
    }
    (folder / "chain.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return build_chain(expand_chain(read_chain(str(folder / "chain.yaml"))))


def test_models_of_the_chain_are_members_and_teachers(config: Config, tmp_path: Path) -> None:
    goals: dict[str, Any] = {goal.label: goal.stage for goal in chain_of(config, tmp_path).goals}
    made = [goals[f"member[{seed}]"].training for seed in (1, 2)]
    taught, ensemble = goals["student"].training, goals["ensemble"]
    assert [start.training for start in taught.teachers] == [start.training for start in ensemble.members] == made
    assert [taught.inputs[f"teachers.{number}.training"] for number in (0, 1)] == made
    assert ensemble.labels == ("member[1]", "member[2]", "student", "average", "base")
    assert trainings(goals["student"].after)[:2] == tuple(training.key for training in made)
    # the members are not measured again: the measurements after their training runs are used
    assert {single.key for single in ensemble.singles[:2]} == {goals[f"member[{seed}]"].after.key for seed in (1, 2)}


def test_device_hours_are_not_known_if_a_member_was_not_made_in_the_chain(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = chain_of(config, tmp_path)
    made = next(goal.stage for goal in chain.goals if goal.label == "ensemble").members  # type: ignore[attr-defined]
    given = Context.of(config).start
    spent = SimpleNamespace(cost={"device_hours": 1.5})
    monkeypatch.setattr(Store, "record_of", lambda store, stage: spent)
    assert spent_device_hours(made, chain.store) == 3.0
    assert spent_device_hours([made[0], given], chain.store) is None
    assert spent_device_hours([given], chain.store) is None


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_chain_trains_a_student_and_measures_the_mean_of_its_teachers(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = chain_of(config, tmp_path)
    goals: dict[str, Any] = {goal.label: goal.stage for goal in chain.goals}
    (record,) = run_stages([goals["ensemble"]], chain.store, chain.resources)
    done = Finished.of(goals["ensemble"], record)
    rows = {row.name: row for row in done.result.rows}
    assert [row.role for row in done.result.rows] == ["ensemble", "best", "member", "other", "other", "base"]
    singles = [rows[f"member[{seed}]"] for seed in (1, 2)]
    worst = max(row.loss["domain"].value for row in singles)
    assert 0 < rows["ensemble"].loss["domain"].value < worst
    best = done.result.rows[1]
    assert best.loss["domain"].value == min(row.loss["domain"].value for row in singles)
    change = rows["ensemble"].change["domain"]
    assert change.value == pytest.approx(rows["ensemble"].loss["domain"].value - best.loss["domain"].value)
    hours = [row.device_hours for row in singles]
    assert rows["ensemble"].device_hours == rows["average"].device_hours == pytest.approx(sum(hours))
    assert rows["student"].device_hours > rows["ensemble"].device_hours
    assert (rows["ensemble"].passes, rows["student"].passes) == (2, 1)
    reports = [json.loads(line) for line in (taught_folder(chain, goals) / "metrics.jsonl").read_text().splitlines()]
    assert all(report["distance"] > 0 for report in reports if "distance" in report)
    assert any("distance" in report for report in reports)
    texts = trained_on(load_record(taught_folder(chain, goals)))
    assert texts is not None
    assert len(texts) == 1
    show_result(done)
    shown = capsys.readouterr().err
    assert "The mean of 2 models' predictions" in shown
    assert [block for block in done.result.blocks(record) if isinstance(block, Table)]


def taught_folder(chain: Chain, goals: dict[str, Any]) -> Path:
    training = goals["student"].training
    return chain.store.folder(training.kind, training.name, training.key)
