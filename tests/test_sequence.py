"""A sequence of two domains from its text to its record, on Ray; a third one added later."""

import json
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from adapt.config import Config
from adapt.config.kinds import KINDS
from adapt.model.load import load_masked_lm
from adapt.parse import parse_values
from adapt.runner import Record, Store
from adapt.stages import Catalogue, run_stages
from adapt.train.retain import newest_whole, step_of
from tests import drive
from tests.samples import labelled, sentences, write

jobs = pytest.fixture(drive.jobs)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> dict[str, Any]:
    """The configuration, by section."""
    folder = tmp_path_factory.mktemp("sequence")
    both = [text.upper() for text in sentences(150, 0)[::10]]  # of the first domain, in the others and in general text
    sources = [
        {
            "name": name,
            "paths": write(folder / f"{name}.jsonl", [{"text": text} for text in [*sentences(150, seed), *both]]),
        }
        for seed, name in enumerate(("one", "two", "three"))
    ]
    task = {
        split: write(folder / f"{split}.jsonl", labelled(count, seed))
        for split, (count, seed) in {"train": (40, 7), "dev": (20, 8), "test": (30, 9)}.items()
    }
    given = {
        "name": "small",
        "model.path": str(tiny_bert),
        "storage.root": str(folder / "runs"),
        "corpus": {"sources": sources, "heldout_fraction": 0.1},
        "evaluation": {
            "sequence_length": 64,
            "general_paths": write(folder / "general.jsonl", [{"text": t} for t in [*sentences(60, 20), *both[:5]]]),
        },
        "training": {"sequence_length": 64, "global_batch_size": 4, "max_steps": 12, "precision": "fp32"},
        "das": {"importance_sequences": 16, "importance_batch": 4},
        "tasks": [{"name": "first", "domain": "one", **task}, {"name": "second", "domain": "two", **task}],
        "finetune": {"seeds": [0, 1], "epochs": 1, "learning_rate": 1e-3},
    }
    nested: dict[str, Any] = {}
    for name, value in given.items():
        *sections, last = name.split(".")
        place = nested.setdefault(sections[0], {}) if sections else nested
        place[last] = value
    return nested


@pytest.fixture(scope="module")
def config(given: dict[str, Any]) -> Config:
    return parse_values(given, KINDS["das"], "test")


def run(config: Config, **changes: Any) -> Record:
    catalogue = Catalogue(replace(config, sequence=replace(config.sequence, **changes)))
    (record,) = run_stages([catalogue.sequence()], Store(catalogue.root), catalogue.config.resources)
    return record


@pytest.fixture(scope="module")
def das(config: Config, ray_cluster: None) -> Record:
    return run(config, order=["one", "two"])


def metrics(record: Record, name: str) -> Mapping[str, Any]:
    """Of one of a record's inputs."""
    found: dict[str, Any] = json.loads((Path(record.inputs[name]["path"]) / "stage.json").read_text())["metrics"]
    return found


def test_the_matrices_hold_what_was_measured(das: Record) -> None:
    scores, losses = das.metrics["scores"], das.metrics["losses"]
    assert scores["columns"] == {"first": 0, "second": 1}
    assert [set(row) for row in scores["rows"]] == [set(), {"first"}, {"first", "second"}]
    assert scores["rows"][2]["first"] == [metrics(das, f"first {seed} after 2")["score"] for seed in (0, 1)]
    assert losses["columns"] == {"one": 0, "two": 1, "general": None}
    everything = {"one", "two", "general"}
    assert [set(row) for row in losses["rows"]] == [everything, everything, everything]
    assert losses["rows"][0]["two"] == metrics(das, "loss of two")["domain_loss"]
    assert losses["rows"][1]["two"] == metrics(das, "export 2")["heldout_loss_before"]
    assert losses["rows"][2]["two"] == metrics(das, "export 2")["heldout_loss_after"]
    assert losses["rows"][2]["one"] == metrics(das, "losses 2")["one_loss"]
    assert losses["rows"][2]["general"] == metrics(das, "export 2")["general_loss_after"]


def test_the_figures_are_those_of_the_matrices(das: Record) -> None:
    rows, found = das.metrics["losses"]["rows"], das.metrics
    assert found["loss_forgetting"] == pytest.approx(rows[2]["one"] - rows[1]["one"])
    assert found["general_change"] == pytest.approx(rows[2]["general"] - rows[0]["general"])
    first = [sum(row["first"]) / 2 for row in found["scores"]["rows"][1:]]
    assert found["forgetting"] == pytest.approx(first[0] - first[1])


def test_no_measured_text_was_trained_on(das: Record) -> None:
    assert das.metrics["overlap"] == 0
    assert metrics(das, "export 2")["heldout_overlap"] == metrics(das, "export 2")["general_overlap"] == 0
    assert metrics(das, "losses 2")["one_overlap"] == 0
    assert metrics(das, "text of one")["dropped"] == {"measured": 10}  # five texts, and their copies in capitals
    assert metrics(das, "text of two")["dropped"] == {"measured": 5}


def test_importance_only_grows(das: Record) -> None:
    general, first, second = (
        load_file(Path(das.inputs[f"importance {number}"]["path"]) / "importance.safetensors") for number in range(3)
    )
    for kind in ("head", "inner", "output"):
        assert (general[kind] <= first[kind]).all()
        assert (first[kind] <= second[kind]).all()
    assert not (general["inner"] == first["inner"]).all()
    assert len(das.metrics["plasticity"]) == 3


def test_the_last_model_is_ordinary_and_has_moved(das: Record, config: Config) -> None:
    model, start = (load_masked_lm(Path(path)).state_dict() for path in (das.metrics["model"], config.model.path))
    assert model.keys() == start.keys()
    assert any(not (model[name] == start[name]).all() for name in model)


def test_a_domain_added_later(das: Record, config: Config) -> None:
    longer = run(config, order=["one", "two", "three"])
    shared = das.inputs.keys() - {"training"}
    assert all(longer.inputs[name] == das.inputs[name] for name in shared)
    assert longer.metrics["losses"]["rows"][:2] == [
        {**row, **({"three": longer.metrics["losses"]["rows"][0]["three"]} if number == 0 else {})}
        for number, row in enumerate(das.metrics["losses"]["rows"][:2])
    ]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_job_that_is_killed_in_its_second_domain(
    das: Record, given: dict[str, Any], jobs: drive.Jobs, tmp_path: Path
) -> None:
    """The same command goes on from the last checkpoint, and comes to what an undisturbed sequence came to."""
    runs = shutil.copytree(das.path.parent.parent, tmp_path / "runs")
    folder = runs / "train" / Path(das.inputs["training"]["path"]).name
    began = started(folder)
    for stage in [file.parent for file in runs.glob("*/*/stage.json")]:
        if started(stage) >= began:
            shutil.rmtree(stage)
    kept = {name: stamp for name, stamp in drive.stamps(runs / "train").items() if not name.endswith(".lock")}
    assert kept
    file = tmp_path / "das.yaml"
    file.write_text(yaml.safe_dump(given))
    often = ["--training.checkpoint_interval_steps=1", "--training.log_interval_steps=1"]
    arguments = ["--config", str(file), "--sequence.order=[one, two]", *often]

    job = jobs.start(tmp_path, arguments, "das.py")
    job.until(lambda: newest_whole(next(folder.glob("checkpoints/*"), folder)) is not None)
    job.interrupt(signal.SIGKILL)
    job.end()
    reached = step_of(newest_whole(next(folder.glob("checkpoints/*"))))
    job = jobs.start(tmp_path, arguments, "das.py")
    found = job.result()
    assert found["stage"] == "das"
    assert job.first_step() == reached + 1
    for name in ("scores", "losses", "plasticity", "forgetting"):
        assert found["metrics"][name] == das.metrics[name]
    models = [Path(metrics["model"]) / "model.safetensors" for metrics in (found["metrics"], das.metrics)]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert kept.items() <= drive.stamps(runs / "train").items()


def started(stage: Path) -> str:
    """When a stage did, for comparison."""
    time: str = json.loads((stage / "stage.json").read_text())["started_at"]
    return time


@pytest.mark.parametrize("mode", ["separate", "joint"])
def test_what_it_is_compared_to(config: Config, ray_cluster: None, mode: str) -> None:
    plain = replace(config, method=replace(config.method, kind="plain"), finetune=replace(config.finetune, seeds=[0]))
    found = run(plain, order=["one", "two"], mode=mode).metrics
    assert found["plasticity"] == []
    rows = [set(row) for row in found["scores"]["rows"]]
    assert rows == [set(), *([{"first"}, {"second"}] if mode == "separate" else [set(), {"first", "second"}])]
    assert found["forgetting"] is None
    assert found["average"] is not None
