"""Tests the check of advice against a study's verdicts. Nothing is run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.advise.advice import Advice, recommend
from adapt.advise.evidence import AS_IT_IS, BOTH, DAPT, TAPT
from adapt.chain.chain_file import read_chain
from adapt.chain.chain_run import ChainRun
from adapt.chain.look_stage import SeedLook
from adapt.runner import Record, Stage, Store
from adapt.runner.ensure import ensure
from adapt.runner.record import plain_values
from adapt.show.blocks import Cell
from adapt.stage.finetuning import Finetune, Finetuned
from adapt.stage.model_evaluation import Look
from adapt.statistics.seeds import Conclusion, Ending, Looked, Seen
from benchmarks.advice_check import Check, advice_table, checked, main
from tests.advise.cases import case, task
from tests.runner.made import made_up
from tests.samples import labelled, write


@pytest.mark.parametrize(
    ("votes", "conclusion", "check"),
    [
        *((2, "better", "confirmed"), (2, "worse", "contradicted"), (2, "equal", "contradicted")),
        *((-3, "better", "contradicted"), (-3, "worse", "confirmed"), (-3, "equal", "confirmed")),
        *((2, "open", "undecided"), (-3, "open", "undecided")),
    ],
)
def test_a_verdict_confirms_or_contradicts_votes(votes: int, conclusion: Conclusion, check: Check) -> None:
    assert checked(votes, conclusion) == check


def ending(difference: float, conclusion: Conclusion) -> Ending:
    seen = Seen(difference, difference - 0.01, difference + 0.01, 0.004, 0.01, 0.05, conclusion)
    return Ending(seen, Looked("toy", "", 1, [6], 0.05, 0.02, 3, 1, 0, "pocock", {}))


def advice_on_a_far_corpus() -> Advice:
    return recommend(case(tasks=[task(overlap=0.1, general_overlap=0.2)]), [])


def test_each_recipe_with_votes_and_a_result_has_a_row() -> None:
    given = advice_on_a_far_corpus()
    assert {recipe.name: recipe.votes for recipe in given.recipes} == {TAPT: 2, AS_IT_IS: 0, DAPT: -3, BOTH: -3}
    ended = {("toy", TAPT): ending(0.034, "better"), ("toy", DAPT): ending(-0.001, "open")}
    rows = [
        [cell.text if isinstance(cell, Cell) else cell for cell in row]
        for row in advice_table({"toy": given}, ended).rows
    ]
    minus = "\N{MINUS SIGN}"
    assert [row[:5] for row in rows] == [["toy", TAPT, "1", "+2", "+3.4"], ["toy", DAPT, "3", "-3", f"{minus}0.1"]]
    assert [row[-1] for row in rows] == ["confirmed", "undecided"]
    assert "+2.4 to +4.4" in rows[0][5]


def settle(stage: Stage[Any], store: Store, result: object) -> None:
    """Writes the record of a stage that did not run."""
    folder = store.folder(stage.kind, stage.name, stage.key)
    folder.mkdir(parents=True)
    values = plain_values(result)
    Record(
        stage.kind, stage.name, stage.key, stage.version, {}, {}, values, {}, {}, {}, {}, "2026-11-26", folder
    ).save()


def test_the_check_reads_the_advice_and_the_verdicts_of_a_study(
    tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writes the records of a study with one look, without running its stages. TAPT is 10 points better."""
    for split, (count, seed) in {"train": (60, 1), "dev": (20, 2), "test": (30, 3)}.items():
        write(tmp_path / f"{split}.jsonl", labelled(count, seed))
    labelled_task = {"name": "toy", **{split: str(tmp_path / f"{split}.jsonl") for split in ("train", "dev", "test")}}
    content = {
        "name": "small",
        "study": "sequential",
        "sequential": {"first_seeds": 5, "max_seeds": 5},
        "common": {
            "model.path": str(tiny_bert),
            "storage.root": str(tmp_path / "runs"),
            "training.sequence_length": 64,
            "evaluation.sequence_length": 64,
            "task": labelled_task,
        },
        "sets": {"recipe": {"base": {"rate": 1e-3}, TAPT: {"rate": 2e-3}}},
        "stages": {
            "advise": {"job": "advise"},
            "finetune": {"job": "finetune", "for": "recipe", "finetune.learning_rate": "{recipe.rate}"},
        },
    }
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    monkeypatch.setattr("sys.argv", ["advice_check", str(file)])
    with pytest.raises(SystemExit, match="run it with"):
        main()
    run = ChainRun(read_chain(str(file)))
    chain = run.build()
    for goal in chain.goals:
        if isinstance(goal.stage, Finetune):
            seed = int(goal.values["seed"])
            score = 0.5 + 0.1 * (goal.values["recipe"] == TAPT) + 0.001 * seed
            settle(goal.stage, chain.store, made_up(Finetuned, score=score, seed=seed, metric="macro_f1"))
        elif isinstance(goal.stage, Look):
            settle(goal.stage, chain.store, case().evidence)
    for goal in run.build().goals:
        if isinstance(goal.stage, SeedLook):
            ensure(goal.stage, chain.store)
    page = run.report().path.read_text(encoding="utf-8")
    assert "examples of rarest class" in page  # the page shows the evidence of the advice
    main()
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    (row,) = (cells for cells in shown if cells[:2] == ["toy", TAPT] and len(cells) == 8)
    assert row[3:5] == ["+2", "+10.0"]
    assert "confirmed" in row[-1]
