"""Runs a small study on Ray from its chain file to its report, with seeds in parallel. No stage runs twice."""

import json
from pathlib import Path

import pytest
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import Chain, ahead, build_chain, study
from adapt.job.job_run import run_stages
from adapt.model.load import load_model
from adapt.runner import Record, Store
from adapt.runner.record import load_record
from adapt.show.report.report_page import write_report
from adapt.show.report.study import HTML
from tests.samples import labelled, sentences, write

SELECT = {"kind": "dsir", "tokens": 800}


@pytest.fixture(scope="module")
def chain_file(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> str:
    """Writes a chain: DAPT, TAPT after DAPT, DAPT on selected text, and fine-tuning of three models with two seeds."""
    folder = tmp_path_factory.mktemp("study")
    pool = write(folder / "corpus.jsonl", [{"text": text} for text in sentences(200)])
    for split, (count, seed) in {"train": (60, 1), "dev": (20, 2), "test": (30, 3)}.items():
        write(folder / f"{split}.jsonl", labelled(count, seed))
    task = {"name": "topics", **{split: str(folder / f"{split}.jsonl") for split in ("train", "dev", "test")}}
    content = {
        "name": "small",
        "common": {
            "model.path": str(tiny_bert),
            "storage.root": str(folder / "runs"),
            "training": {"sequence_length": 64, "global_batch_size": 4, "precision": "fp32"},
            "evaluation.sequence_length": 64,
            "finetune": {"seeds": [0, 1], "epochs": 2, "learning_rate": 1e-3},
        },
        "sets": {"recipe": {"base": {"start": None}, "DAPT": {"start": "dapt"}, "DAPT+TAPT": {"start": "tapt"}}},
        "stages": {
            "dapt": {"job": "dapt", "corpus.paths": str(folder / "corpus.jsonl"), "training.max_steps": 3},
            "tapt": {"job": "tapt", "task": task, "from": "dapt", "training.epochs": 2, "tapt.batch_examples": 16},
            "chosen": {"job": "select", "task": task, "from": "dapt", "select": SELECT | {"pool_paths": pool}},
            "more": {
                "job": "dapt",
                "from": ["dapt", "chosen"],
                "training.max_steps": 2,
                "corpus.heldout_fraction": 0.2,
            },
            "finetune": {"job": "finetune", "for": "recipe", "from": "{recipe.start}", "task": task},
        },
    }
    file = folder / "chain.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(file)


@pytest.fixture(scope="module")
def chain(chain_file: str) -> Chain:
    return build_chain(expand_chain(read_chain(chain_file)))


@pytest.fixture(scope="module")
def records(chain: Chain, ray_cluster: None) -> dict[str, Record]:
    """Runs the whole chain and returns its records by label."""
    stages = [goal.stage for goal in chain.goals]
    found = run_stages(stages, chain.store, chain.resources)
    return {goal.label: record for goal, record in zip(chain.goals, found, strict=True)}


RUNS = [f"finetune[{recipe}, {seed}]" for recipe in ("base", "DAPT", "DAPT+TAPT") for seed in (0, 1)]


def test_every_stage_has_its_record(records: dict[str, Record]) -> None:
    assert sorted(records) == sorted(["dapt", "tapt", "chosen", "more", *RUNS])
    assert all(record.metrics for record in records.values())


def test_tapt_continues_from_the_model_of_dapt(records: dict[str, Record]) -> None:
    training = records["tapt"].inputs["training"]
    start = json.loads((Path(training["path"]) / "stage.json").read_text())["inputs"]["start.training"]
    assert start["key"] == records["dapt"].inputs["training"]["key"]
    dapt, tapt = (load_model(records[name].path).state_dict() for name in ("dapt", "tapt"))
    assert any(not (dapt[name] == tapt[name]).all() for name in dapt)


def test_the_loss_before_tapt_is_the_loss_after_dapt(records: dict[str, Record], tmp_path: Path) -> None:
    """The loss before TAPT is the loss of the model after DAPT, not the loss of the chain's first model."""
    before = json.loads((Path(records["tapt"].inputs["before"]["path"]) / "stage.json").read_text())
    assert before["inputs"]["start.training"]["key"] == records["dapt"].inputs["training"]["key"]


def test_sixteen_examples_fill_a_step_on_average(records: dict[str, Record]) -> None:
    metrics = records["tapt"].metrics
    tokens = records["tapt"].metrics["tokens"] / 2  # The training has two epochs, so an epoch has half of the tokens.
    rows = round(16 * tokens / 60 / 64)
    assert metrics["sources"]["topics"]["rows"] / metrics["steps"] == pytest.approx(rows, abs=0.51)


def test_seeds_differ_and_models_differ(records: dict[str, Record]) -> None:
    def answers(label: str) -> str:
        return (records[label].path / "predictions.jsonl").read_text()

    assert len({answers(label) for label in RUNS}) == len(RUNS)


def test_dapt_trains_on_selected_text_and_leaves_out_a_share(records: dict[str, Record]) -> None:
    chosen, made = records["chosen"].metrics, records["more"].metrics
    prepared = load_record(Path(records["more"].inputs["domain"]["path"]))
    assert prepared
    counts = prepared.metrics
    assert counts["train_documents"] + counts["heldout_documents"] == chosen["documents"]
    assert counts["train_tokens"] + counts["heldout_tokens"] == chosen["tokens"] >= 800
    assert counts["heldout_documents"] > 0
    assert made["steps"] == 2
    assert "documents selected from a pool" in (records["more"].path / "README.md").read_text()
    assert chosen["selection"]["loss"] is not None  # The selection's loss is measured with the model from DAPT.


def test_nothing_is_done_twice(chain_file: str, records: dict[str, Record]) -> None:
    again = build_chain(expand_chain(read_chain(chain_file)))
    assert ahead(again) == {}
    found = run_stages([goal.stage for goal in again.goals], again.store, again.resources)
    assert [record.started_at for record in found] == [records[goal.label].started_at for goal in again.goals]


def test_another_seed_adds_one_run_per_model(chain_file: str, records: dict[str, Record]) -> None:
    more = read_chain(chain_file, common={"finetune.seeds": [0, 1, 2]})
    assert ahead(build_chain(expand_chain(more))) == {"finetune": 3}


def test_the_report_names_every_recipe(chain: Chain, records: dict[str, Record], tmp_path: Path) -> None:
    write_report(study("small", "base", chain), tmp_path)
    text = (tmp_path / HTML).read_text()
    assert all(name in text for name in ("small", "topics", "DAPT+TAPT", "Selected text"))
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert (tmp_path / "report.md").read_text().startswith("# ")


def test_an_unfinished_chain_has_a_report_too(chain: Chain, tmp_path: Path) -> None:
    empty = Chain(chain.goals, Store(tmp_path / "nothing"), chain.resources, chain.notify)
    found = study("small", "base", empty)
    assert sorted(found.missing) == sorted(["dapt", "tapt", "chosen", "more", *RUNS])
    assert write_report(found, tmp_path)
    assert (tmp_path / HTML).exists()
