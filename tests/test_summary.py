"""Tables on the terminal show texts and names unchanged, whatever characters they contain."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapt.evaluate.measurements import Estimate, LossChange
from adapt.job.job_run import plan_table
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage, Store, ensure, plan_stages
from adapt.runner.lock import locked
from adapt.runner.store import DIGITS
from adapt.show.progress.goals import states_by_entry
from adapt.show.renderers import show_blocks
from adapt.stage.export_model import Adapted
from tests.runner.test_record import record

ADAPTED = Adapted(
    steps=600,
    tokens=4_915_200,
    tokens_per_s=20_000.4,
    data_wait_share=0.0123,
    device_seconds=245.0,
    flops=None,
    mfu=0.234,
    peak_memory_bytes=3 * 2**29,
    transductive=False,
    losses={"domain": LossChange("domain", 99, Estimate(3.25, 3.0, 3.5), Estimate(2.0), Estimate(-1.25), 0.8125, 0.5)},
)
STRANGE = "see [/usr/lib] or [bold]x[/bold] :smile: \\[a] [MASK]"


@dataclass(frozen=True)
class Nothing:
    """The result of a stage that produces nothing."""


@dataclass(frozen=True, eq=False)
class Toy(Stage[Nothing]):
    """A stage that produces nothing."""

    kind = "train"

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    training: Stage[Any] | None = None
    start: Start | None = None

    def what(self) -> Mapping[str, Any]:
        return self.values

    def run(self, folder: Path, done: Done) -> Outcome[Nothing]:
        return Outcome(Nothing())


def row(shown: str, *cells: str) -> bool:
    """Returns whether the shown text has a table row with exactly these cells."""
    return any([cell.strip() for cell in line.split("│")[1:-1]] == list(cells) for line in shown.splitlines())


def shown_result(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    examples: dict[str, Any] | None = None,
    cost: float | None = None,
    **changes: Any,
) -> str:
    """Returns the terminal output for the result of a DAPT job."""
    inputs = {}
    for name in ("before", "after"):
        inputs[name] = {"stage": "evaluate", "key": "k", "path": str(folder / name)}
        if examples:
            (folder / name).mkdir()
            (folder / name / "examples.json").write_text(json.dumps([examples]))
    made = record(folder, name="[demo] x", inputs=inputs, cost={"cost": cost})
    show_blocks(replace(ADAPTED, **changes).blocks(made))
    out, err = capsys.readouterr()
    assert out == ""  # Results go to stderr, because stdout is for programs.
    return err


def test_an_adapted_model_is_shown_with_losses_cost_and_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = shown_result(capsys, tmp_path)
    assert row(shown, "your domain", "3.250 (3.000 to 3.500)", "2.000", "-1.250", "0.812", "0.500")
    assert shown.startswith(
        "Verdict: undecided on your domain, for which there is no 95% interval.\n"
        "Held-out loss on your domain went from 3.25 to 2.00 nats per token. Too few documents"
    )
    assert "general" not in shown  # The loss on general text was not measured.
    assert "Training: 600 steps, 4,915,200 tokens, 20,000 tokens per second, 1.2% of the time waiting for data" in shown
    assert ", 4 min 05 s of device time, 23% of the device's peak FLOPs, peak memory 1.5 GiB per device.\n" in shown
    assert f"Model: {tmp_path}\n" in shown
    assert "[demo] x: " in shown
    assert "transductive" not in shown
    assert "transductive" in shown_result(capsys, tmp_path, transductive=True)


def test_a_price_is_shown_where_there_is_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert ", cost 1,234.50.\n" in shown_result(capsys, tmp_path, cost=1234.5)


def test_missing_measurements_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "4 min 05 s of device time.\n" in shown_result(capsys, tmp_path, mfu=None, peak_memory_bytes=None)


def test_a_table_without_rows_is_not_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = shown_result(capsys, tmp_path, losses={})
    assert "┏" not in shown
    assert (
        "The loss on your domain was not measured: fewer than two documents are held out (corpus.heldout_fraction"
        in shown
    )


def test_examples_are_shown_unchanged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example = {"text": STRANGE, "answer": "[/x]", "guesses": [["[/x]", 0.5], ["\\", 0.2], ["]", 0.1]]}
    shown = shown_result(capsys, tmp_path, example)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    columns = ["".join(cells) for cells in zip(*(line for line in lines[1:] if len(line) == 4), strict=True)]
    assert STRANGE.replace(" ", "") in columns[0].replace(" ", "")
    assert columns[1].endswith("[/x]")
    assert columns[2].endswith("[/x], \\, ] ✓")


def test_a_plan_shows_each_stage_with_its_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def stage(name: str, **values: Any) -> Toy:
        return Toy(name, values)

    store = Store(tmp_path)
    show_blocks([plan_table(plan_stages(stage("first", paths=["a"]), store))])
    made = ensure(stage("first", paths=["a"]), store)
    show_blocks([plan_table(plan_stages(stage("first", paths=["a"]), store))])
    out, shown = capsys.readouterr()
    assert out == ""
    assert row(shown, "train", "will run", f"train/{made.path.name}", "it has never run")
    assert row(shown, "train", "finished", f"train/{made.path.name}", "")
    changed = stage("[red]", paths=["[/b]"])
    show_blocks([plan_table(plan_stages(changed, store))])
    shown = capsys.readouterr().err
    assert row(shown, "train", "will run", f"train/[red]-{changed.key[:DIGITS]}", 'paths: ["a"] -> ["[/b]"]')
    assert f"(compared with {made.path.name})" in shown


def test_a_stage_that_starts_from_another_entrys_model_waits_for_it(tmp_path: Path) -> None:
    store, training = Store(tmp_path), Toy("dapt", {})
    folder = store.folder("train", "dapt", training.key)
    folder.mkdir(parents=True)
    with locked(folder):
        start = Start(Pretrained(tmp_path, tmp_path), None, training)
        stages = Toy("export", {}, training), Toy("finetune", {}, start=start)
        goals = [SimpleNamespace(label=stage.name, name=stage.name, stage=stage) for stage in stages]
        states = states_by_entry(goals, store)
    assert states["export"] == {"finished": [], "running": [""], "waiting": []}
    assert states["finetune"] == {"finished": [], "running": [], "waiting": [""]}
