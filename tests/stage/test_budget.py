"""Tests that a job stays within its device-time budget, ends with a checkpoint, and continues with a larger budget."""

import json
from pathlib import Path

import pytest

from adapt.config import BudgetConfig, ResourcesConfig
from adapt.generate.block_files import BLOCKS, files_of_block
from adapt.runner import Done, Outcome, Store, ensure, ensure_all
from adapt.stage import budget
from adapt.stage.budget import Spending, budget_outlook, spending_of, within_budget
from adapt.stage.preflight import check_priced
from adapt.support.errors import BudgetError, ConfigError, TrainingError
from adapt.support.schema import END_FILE
from adapt.train.held_time import HeldLog, add_seconds, holding
from tests.runner.toys import Toy, ToyResult, idle

HOUR = 3600.0


class Paid(Toy):
    """A toy stage that takes device time, as training does."""

    device_time = "own"


class Repeated(Toy):
    """A toy stage whose record repeats the device time of its inputs, as the record of an export does."""

    device_time = "inputs"


def hours_of_work(folder: Path, done: Done) -> Outcome[ToyResult]:
    """Imitates training that takes 2 device-hours each time it is started. It finishes unless the budget ends it."""
    (folder / END_FILE).unlink(missing_ok=True)
    with holding(folder, 1, waits=False):
        log = HeldLog(folder)
        log.begin(0)
        add_seconds("steps", 2 * HOUR)
        log.record(1)
        for _ in range(100):
            if (folder / END_FILE).exists():
                raise BudgetError("training stopped after step 1 of 2, with a checkpoint")
            budget.threading.Event().wait(0.003)
    return Outcome(ToyResult(), {"device_hours": 4.0, "cost": 8.0})


def fails(folder: Path, done: Done) -> Outcome[ToyResult]:
    raise TrainingError("the loss is not finite")


def resources(**limits: float) -> ResourcesConfig:
    return ResourcesConfig(price_per_device_hour=2.0, budget=BudgetConfig(**limits))


TRAINING = Paid("papers", "train", hours_of_work)
EXPORT = Repeated("papers", "export", lambda folder, done: Outcome(ToyResult(), {"device_hours": 4.0}), source=TRAINING)
OTHER = Paid("other", "finetune", idle)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(budget, "_LOOK_S", 0.002)
    return Store(tmp_path)


@pytest.mark.parametrize("limits", [{"device_hours": 1.5}, {"cost": 3.0}])
def test_a_training_ends_at_the_limit_and_goes_on_with_a_larger_budget(store: Store, limits: dict[str, float]) -> None:
    with (
        pytest.raises(BudgetError, match="training stopped after step 1 of 2") as caught,
        within_budget(resources(**limits), [EXPORT], store) as admitting,
    ):
        ensure(EXPORT, admitting)
    assert "the budget is spent" in caught.value.what
    assert "raise resources.budget and run the same command" in caught.value.fix
    with (
        pytest.raises(BudgetError, match="train papers did not start"),  # earlier device time counts too
        within_budget(resources(**limits), [EXPORT], store) as admitting,
    ):
        ensure(EXPORT, admitting)
    larger = {name: 10 * limit for name, limit in limits.items()}
    with within_budget(resources(**larger), [EXPORT], store) as admitting:
        assert ensure(EXPORT, admitting).result == ToyResult()


def blocks_of_text(folder: Path, done: Done) -> Outcome[ToyResult]:
    """Imitates a generation of up to ten blocks of one device-hour, which ends when the budget is reached."""
    (folder / END_FILE).unlink(missing_ok=True)
    (folder / BLOCKS).mkdir(exist_ok=True)
    for number in range(10):
        text_file, figures_file = files_of_block(folder, f"{number:08d}")
        if not figures_file.exists():
            if (folder / END_FILE).exists():
                raise BudgetError("text generation stopped before its next block of texts")
            text_file.write_text("")
            figures_file.write_text(json.dumps({"seconds": HOUR}))
            budget.threading.Event().wait(0.05)
    return Outcome(ToyResult(), {"device_hours": 10.0})


def test_a_generation_stops_before_a_block_and_its_finished_blocks_count(store: Store) -> None:
    stage = Paid("papers", "generate", blocks_of_text)
    with (
        pytest.raises(BudgetError, match="stopped before its next block"),
        within_budget(resources(device_hours=2.5), [stage], store) as admitting,
    ):
        ensure(stage, admitting)
    made = len([*(store.folder_of(stage) / BLOCKS).glob("*.json")])
    assert 3 <= made < 10
    assert spending_of(stage, store, 2.0) == (Spending(made, 2.0 * made), False)
    with (
        pytest.raises(BudgetError, match="generate papers did not start"),
        within_budget(resources(device_hours=2.5), [stage], store) as admitting,
    ):
        ensure(stage, admitting)
    with within_budget(resources(device_hours=50), [stage], store) as admitting:
        ensure(stage, admitting)


def test_finished_stages_count_once_and_free_stages_run_after_the_limit(store: Store) -> None:
    """The export's record repeats the training's 4 device-hours, which exactly use up the budget."""
    ensure(TRAINING, store)
    for limit in (4.0, 4.1):
        with within_budget(resources(device_hours=limit), [EXPORT, OTHER], store) as admitting:
            ensure(EXPORT, admitting)
            if limit > 4:
                ensure(OTHER, admitting)
            else:
                with pytest.raises(BudgetError, match="finetune other did not start"):
                    ensure(OTHER, admitting)


def test_the_budget_is_named_if_several_stages_fail_by_it(store: Store) -> None:
    ensure(TRAINING, store)
    others = [Paid(name, "finetune", idle, {"name": name}) for name in "ab"]
    with (
        pytest.raises(BudgetError, match=r"the budget is spent \(4 device-hours of 3\)"),
        within_budget(resources(device_hours=3.0), [TRAINING, *others], store) as admitting,
    ):
        ensure_all(others, admitting, None, 2)


def test_other_errors_stay_as_they_are(store: Store) -> None:
    with (
        pytest.raises(TrainingError, match="not finite"),
        within_budget(resources(device_hours=3.0), [OTHER], store) as admitting,
    ):
        ensure(Paid("b", "train", fails), admitting)
    with within_budget(ResourcesConfig(), [OTHER], store) as admitting:
        assert admitting is store


def test_the_plan_compares_the_expected_time_with_the_budget(store: Store) -> None:
    ensure(TRAINING, store)
    # this stage is expected to take as long as the other stage of the same kind
    again = Paid("again", "train", idle, {"again": 1})
    goals = [EXPORT, again]
    assert budget_outlook(resources(device_hours=9), goals, store) == (
        "The whole run needs about 8 device-hours; the budget is 9 (resources.budget). 4 device-hours are already"
        " spent."
    )
    said = budget_outlook(resources(device_hours=5, cost=20), goals, store)
    assert "about 8 device-hours; the budget is 5, and about a cost of 16.00; the budget is 20 (resour" in said
    assert said.endswith(
        " The run will stop with a checkpoint when the budget is spent. If you then raise the budget, it continues."
    )
    said = budget_outlook(resources(device_hours=9), [*goals, OTHER], store)
    assert "The whole run needs at least 8 device-hours" in said
    assert "The time of 1 stage is not known yet." in said
    assert budget_outlook(ResourcesConfig(), goals, store) == ""


def test_the_plan_counts_what_an_unfinished_training_did_and_lost(store: Store) -> None:
    """An unfinished training run has completed 1 of its 4 hours, and has also lost half an hour."""
    ensure(TRAINING, store)
    again = Paid("again", "train", idle, {"again": 1})
    folder = store.folder_of(again)
    with holding(folder, 1, waits=False):
        log = HeldLog(folder)
        log.begin(0)
        add_seconds("steps", HOUR)
        add_seconds("restart", HOUR / 2)
        log.record(1)
    said = budget_outlook(resources(device_hours=5), [again], store)
    assert said.startswith(
        "The whole run needs about 4.5 device-hours; the budget is 5 (resources.budget). 1.5 device-hours are already"
    )


def test_a_budget_of_money_needs_a_price() -> None:
    check_priced(resources(cost=3.0))
    check_priced(ResourcesConfig(budget=BudgetConfig(device_hours=1.0)))
    with pytest.raises(ConfigError, match=r"resources\.budget has a cost, but the price"):
        check_priced(ResourcesConfig(budget=BudgetConfig(cost=1.0)))
