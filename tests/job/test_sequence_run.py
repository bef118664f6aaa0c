"""Runs a sequence of two domains on Ray, adds a third domain later, and kills and restarts another sequence."""

import json
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from safetensors.torch import load_file

from adapt.config import Config
from adapt.job.job_run import run_stages
from adapt.job.sequence_job import SEQUENCE_JOB, sequence_stages
from adapt.model.additions.domain_modules import domains_of, sets_of
from adapt.model.load import load_model
from adapt.parse import parse_values
from adapt.runner import Finished, Stage, Store
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence, SequenceResult
from adapt.stage.train import Train
from adapt.train.checkpoints.stored_checkpoints import newest_whole, step_of
from tests import drive
from tests.samples import labelled, sentences, write
from tests.show.shown import show_result

R = TypeVar("R")
jobs = pytest.fixture(drive.jobs)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> dict[str, Any]:
    """Returns the sections of the configuration by name."""
    folder = tmp_path_factory.mktemp("sequence")
    # Capitalized copies of texts of the first domain. The other domains and general text contain these copies.
    both = [text.upper() for text in sentences(150, 0)[::10]]

    def texts(name: str, texts: list[str]) -> str:
        return write(folder / f"{name}.jsonl", [{"text": text} for text in texts])

    sources = [
        {"name": name, "paths": texts(name, [*sentences(150, seed), *both])}
        for seed, name in enumerate(("one", "two", "three"))
    ]
    task = {
        split: write(folder / f"{split}.jsonl", labelled(count, seed))
        for split, (count, seed) in {"train": (40, 7), "dev": (20, 8), "test": (30, 9)}.items()
    }
    return {
        "name": "small",
        "model": {"path": str(tiny_bert)},
        "storage": {"root": str(folder / "runs")},
        "corpus": {"sources": sources, "heldout_fraction": 0.1},
        "evaluation": {"sequence_length": 64, "general_paths": texts("general", [*sentences(60, 20), *both[:5]])},
        "training": {"sequence_length": 64, "global_batch_size": 4, "max_steps": 12, "precision": "fp32"},
        "method": {"kind": "das"},
        "das": {"importance_sequences": 16, "importance_batch": 4},
        "tasks": [{"name": "first", "domain": "one", **task}, {"name": "second", "domain": "two", **task}],
        "finetune": {"seeds": [0, 1], "epochs": 1, "learning_rate": 1e-3},
    }


@pytest.fixture(scope="module")
def config(given: dict[str, Any]) -> Config:
    return parse_values(given, SEQUENCE_JOB.kind, "test")


@dataclass(frozen=True)
class Ran:
    """A finished sequence."""

    stage: Sequence
    done: Finished[SequenceResult]
    store: Store

    @property
    def result(self) -> SequenceResult:
        return self.done.result

    def of(self, stage: Stage[R]) -> Finished[R]:
        """Returns another stage of the sequence together with its stored result."""
        record = self.store.find(stage.kind, stage.name, stage.key)
        assert record
        return Finished.of(stage, record)


def run(config: Config, trained: Ran | None = None, **changes: Any) -> Ran:
    """Runs a sequence.

    Args:
        config: configuration of the sequence.
        trained: a finished sequence. Its last model replaces the model of every training run. None trains the models.
        changes: values for fields of section `sequence`.
    """
    context = Context.of(replace(config, sequence=replace(config.sequence, **changes)))
    stage = sequence_stages(context)
    if trained:
        for step in stage.steps:
            stand_in(trained, step.training)
    (record,) = run_stages([stage], context.store, config.resources)
    return Ran(stage, Finished.of(stage, record), context.store)


def stand_in(ran: Ran, training: Train) -> None:
    """Copies the last model of a sequence to the folder in which a training run would save its model."""
    folder = ran.store.folder(training.kind, training.name, training.key)
    if not folder.exists():
        made = ran.of(ran.stage.steps[-1].training)
        shutil.copytree(made.path, folder, ignore=shutil.ignore_patterns("stage.json"))
        replace(made.record, key=training.key, name=training.name, path=folder).save()


@pytest.fixture(scope="module")
def das(config: Config, ray_cluster: None) -> Ran:
    return run(config, order=["one", "two"])


def test_the_matrices_hold_the_measurements(das: Ran) -> None:
    scores, losses, steps = das.result.scores, das.result.losses, das.stage.steps
    assert scores.columns == {"first": 0, "second": 1}
    assert [set(row) for row in scores.rows] == [set(), {"first"}, {"first", "second"}]
    assert scores.rows[2]["first"] == [das.of(each).result.score for each in steps[1].runs["first"]]
    assert losses.columns == {"one": 0, "two": 1, "general": None}
    assert [set(row) for row in losses.rows] == [{"one", "two", "general"}] * 3
    exported = das.of(steps[1].export).result.losses
    assert losses.rows[0]["two"] == das.of(das.stage.before["two"]).result.texts["domain"].loss
    assert losses.rows[1]["two"] == exported["domain"].before.value
    assert losses.rows[2]["two"] == exported["domain"].after.value
    assert steps[1].others
    assert losses.rows[2]["one"] == das.of(steps[1].others).result.texts["one"].loss
    assert losses.rows[2]["general"] == exported["general"].after.value


def test_the_figures_follow_from_the_matrices(das: Ran) -> None:
    rows, found = das.result.losses.rows, das.result
    assert found.loss_forgetting == pytest.approx(rows[2]["one"] - rows[1]["one"])
    assert found.general_change == pytest.approx(rows[2]["general"] - rows[0]["general"])
    first = [sum(row["first"]) / 2 for row in found.scores.rows[1:]]
    assert found.forgetting == pytest.approx(first[0] - first[1])


def test_no_measured_text_was_trained_on(das: Ran) -> None:
    assert das.result.overlap == 0
    step = das.stage.steps[1]
    exported = das.of(step.export).result
    assert [of.overlap for of in exported.losses.values()] == [0, 0]
    assert step.others
    assert das.of(step.others).result.texts["one"].overlap == 0
    dropped = {name: das.of(text).result.dropped for name, text in das.stage.texts.items()}
    assert dropped == {
        "one": {"measured": 10},
        "two": {"measured": 5},
    }  # Five texts are dropped. In one domain, their copies are also dropped.


def test_importance_only_grows(das: Ran) -> None:
    stages = [*(step.past["importance"] for step in das.stage.steps), das.stage.past["importance"]]
    general, first, second = (load_file(das.of(each).path / "importance.safetensors") for each in stages)
    for kind in ("head", "inner", "output"):
        assert (general[kind] <= first[kind]).all()
        assert (first[kind] <= second[kind]).all()
    assert not (general["inner"] == first["inner"]).all()
    (table,) = das.result.tables
    assert list(table["rows"]) == ["after 0 domains", "after 1 domain", "after 2 domains"]


def test_the_last_model_loads_normally_and_has_changed(das: Ran, config: Config) -> None:
    model, start = (load_model(Path(path)).state_dict() for path in (das.result.model, config.model.path))
    assert model.keys() == start.keys()
    assert any(not (model[name] == start[name]).all() for name in model)


def test_its_summary_is_shown(das: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    show_result(das.done)
    shown = capsys.readouterr().err
    assert all(
        text in shown
        for text in ("Learnt 2 domains with method das, in the order one, two", "remaining plasticity", "Model: ")
    )


def test_a_domain_added_later_redoes_nothing(das: Ran, config: Config) -> None:
    longer = run(config, das, order=["one", "two", "three"])
    known, found = das.done.record.inputs, longer.done.record.inputs
    # Inputs named `past.*` were measured after the last domain. The two runs end with different domains.
    shared = {name for name in known if not name.startswith("past.")}
    assert all(found[name] == known[name] for name in shared)
    assert found["steps.2.past.importance"] == known["past.importance"]
    before, after = das.result.losses.rows, longer.result.losses.rows
    assert after[0] == {**before[0], "three": after[0]["three"]}
    assert after[1] == before[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_killed_in_its_second_domain_gives_the_same_result(
    das: Ran, given: dict[str, Any], jobs: drive.Jobs, tmp_path: Path
) -> None:
    """The same command continues from the last checkpoint, even if checkpoints are deleted when a training run ends."""
    runs = shutil.copytree(das.store.root, tmp_path / "runs")
    folder = runs / "train" / das.of(das.stage.steps[1].training).path.name
    began = started(folder)
    for stage in [file.parent for file in runs.glob("*/*/stage.json")]:
        if started(stage) >= began:
            shutil.rmtree(stage)
    kept = {name: stamp for name, stamp in drive.stamps(runs / "train").items() if not name.endswith(".lock")}
    assert kept
    file = tmp_path / "sequence.yaml"
    file.write_text(yaml.safe_dump(given))
    how = {"checkpoint_interval_steps": 1, "log_interval_steps": 1, "keep_checkpoints": 0}
    often = [f"--training.{name}={value}" for name, value in how.items()]
    arguments = ["--config", str(file), "--sequence.order=[one, two]", *often]

    job = jobs.start(tmp_path, arguments, "sequence.py")
    job.until(lambda: newest_whole(next(folder.glob("checkpoints/*"), folder)) is not None)
    job.interrupt(signal.SIGKILL)
    job.end()
    reached = step_of(newest_whole(next(folder.glob("checkpoints/*"))))  # type: ignore[arg-type]
    job = jobs.start(tmp_path, arguments, "sequence.py")
    found = job.result()
    assert found["stage"] == "sequence"
    assert (job.first_step(), (folder / "checkpoints").exists()) == (reached + 1, False)
    for name in ("scores", "losses", "tables", "forgetting"):
        assert found["metrics"][name] == das.done.record.metrics[name]
    models = [Path(model) / "model.safetensors" for model in (found["metrics"]["model"], das.result.model)]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert kept.items() <= drive.stamps(runs / "train").items()
    record = json.loads((folder / "stage.json").read_text())
    figures = record["metrics"]
    lost = figures["lost_device_seconds"]
    assert 0 < figures["goodput"] < 1
    # sums over the killed and the restarted job, without the time between the jobs
    assert min(lost["start"], lost["restart"]) > 0
    assert figures["held_device_seconds"] * (1 - figures["goodput"]) == pytest.approx(sum(lost.values()), abs=0.1)
    assert record["cost"]["device_seconds"] == figures["held_device_seconds"]


def started(stage: Path) -> str:
    """Returns the recorded start time of a stage, which shows whether the stage ran again."""
    time: str = json.loads((stage / "stage.json").read_text())["started_at"]
    return time


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ewc", {"fisher_sequences": 16}),
        ("lora", {"kind": "corda", "rank": 2}),
        ("replay", {"fraction": 0.5}),
    ],
)
def test_each_method_trains_a_second_domain_with_its_knowledge_of_the_first(
    given: dict[str, Any], das: Ran, method: str, options: dict[str, Any]
) -> None:
    """Runs on two ranks. The model of the first domain is taken from a sequence with another method."""
    resources = {"workers": 2, "zero_stage": 2}
    changed = {**given, "method": {"kind": method}, method: options, "resources": resources, "tasks": []}
    if method == "ewc":
        changed["ewc"] = {**options, "general": "none"}
    stage = sequence_stages(
        Context.of(parse_values({**changed, "sequence": {"order": ["one", "two"]}}, SEQUENCE_JOB.kind, "test"))
    )
    first, second = (step.training for step in stage.steps)
    stand_in(das, first)
    (record,) = run_stages([second], das.store, second.config.resources)
    trained = Finished.of(second, record)
    model, start = (load_model(folder / "model").state_dict() for folder in (record.path, das.of(first).path))
    assert model.keys() == start.keys()
    assert any(not (model[name] == start[name]).all() for name in model)
    sources = trained.result.sources or {}
    if method == "ewc":
        assert das.of(second.past["fisher"]).result.domains == 1
        assert set(sources) == {"domain"}
    elif method == "lora":
        assert das.of(second.past["moments"]).result.domains == 2
    else:
        assert set(sources) == {"domain", "one"}
        assert 0.3 < sources["one"].share < 0.7  # about half of the 48 rows are replayed from domain `one`


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "layers"),
    [("hat", {"width": 4}, 2), ("cpt", {"width": 4}, 2), ("elle", {"layers": [1, 1], "heads": [0, 0]}, 4)],
)
def test_methods_with_parts_per_domain_run_to_the_end(
    given: dict[str, Any], ray_cluster: None, method: str, options: dict[str, Any], layers: int
) -> None:
    """Runs on two ranks.

    Fine-tuning uses the parameters of its domain, and losses are measured with and without them.
    """
    short = {"training": {**given["training"], "max_steps": 4}, "finetune": {**given["finetune"], "seeds": [0]}}
    changed = {**given, **short, "method": {"kind": method}, method: options, "resources": {"workers": 2}}
    ran = run(parse_values(changed, SEQUENCE_JOB.kind, "test"), order=["one", "two"])
    assert [set(row) for row in ran.result.scores.rows] == [set(), {"first"}, {"first", "second"}]
    model: Any = load_model(ran.of(ran.stage.steps[-1].export).path)
    assert model.config.num_hidden_layers == layers
    known = domains_of(model)
    assert known is not None
    assert known.names == ["one", "two"]
    assert all(len(sets) == 2 for sets in sets_of(model))
    assert ran.of(ran.stage.steps[-1].runs["first"][0]).result.domain == "one"


@pytest.mark.parametrize("mode", ["separate", "joint"])
def test_baselines_run(config: Config, das: Ran, mode: str) -> None:
    plain = replace(config, method=replace(config.method, kind="plain"), method_options=None)
    one_seed = replace(plain, finetune=replace(config.finetune, seeds=[0]))
    found = run(one_seed, das if mode == "separate" else None, order=["one", "two"], mode=mode).result
    assert found.tables == []
    few, copies = found.warnings
    assert few.startswith("fewer than 30 documents are held out")
    assert "duplicates" in copies
    rows = [set(row) for row in found.scores.rows]
    assert rows == [set(), *([{"first"}, {"second"}] if mode == "separate" else [set(), {"first", "second"}])]
    assert found.forgetting is None
    assert found.average is not None
