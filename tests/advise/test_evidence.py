"""Compares the costs of recipes with sums computed by hand."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from adapt.advise.evidence import (
    AS_IT_IS,
    BOTH,
    DAPT,
    SELECTED,
    TAPT,
    Evidence,
    ProposedSelection,
    TextEvidence,
    costs,
    propose,
)
from adapt.config import (
    Config,
    CorpusConfig,
    FinetuneConfig,
    MethodConfig,
    ResourcesConfig,
    SelectConfig,
    TrainingConfig,
)
from adapt.finetune.finetune_loop import FinetuneSettings
from adapt.method.base import Added
from adapt.method.das.method import DasOptions
from adapt.model.size import ModelSize, model_size
from adapt.runner import Store
from adapt.train.capacity import forecast
from adapt.train.capacity.flops import Workload, forward_flops, training_flops
from tests.advise.cases import CORPUS, TASK, task, text

CONFIG = Config(
    training=TrainingConfig(global_batch_size=10, sequence_length=50),
    corpus=CorpusConfig(heldout_fraction=0.1),
    resources=ResourcesConfig(device_memory_gib=8.0, gpus_per_worker=0, price_per_device_hour=2.0),
)
EVIDENCE = Evidence([TASK], CORPUS)


@pytest.fixture
def size(tiny_bert: Path) -> ModelSize:
    found = model_size(tiny_bert)
    assert found
    return found


def tokens(config: Config, evidence: Evidence, tmp_path: Path) -> dict[str, int | None]:
    return {name: cost.tokens for name, cost in costs(config, evidence, None, Store(tmp_path)).recipes.items()}


def test_tokens_of_every_recipe(tmp_path: Path) -> None:
    fine_tuning, tapt, dapt = 200_000 * 10 * 5, 200_000 * 100, 4_500_000
    assert tokens(CONFIG, EVIDENCE, tmp_path) == {
        AS_IT_IS: fine_tuning,
        TAPT: fine_tuning + tapt,
        DAPT: fine_tuning + dapt,
        BOTH: fine_tuning + tapt + dapt,
    }


@pytest.mark.parametrize("examples", [5_000, 5_001])
def test_fine_tuning_takes_as_many_epochs_as_the_loop_will_run(examples: int, tiny_bert: Path, tmp_path: Path) -> None:
    """Compares with `FinetuneSettings`, whose module is not imported by `advise`, because it loads torch."""
    settings = FinetuneSettings.of(CONFIG.finetune, tiny_bert, "first", examples)
    found = tokens(CONFIG, Evidence([task(examples=examples)]), tmp_path)
    assert found[AS_IT_IS] == TASK.tokens * settings.epochs * len(CONFIG.finetune.seeds)


def test_a_selection_is_trained_on_ten_times_and_compared_with_one_pass_over_the_pool(
    tmp_path: Path, size: ModelSize
) -> None:
    evidence = Evidence([TASK], candidates=text(documents=10_000_000, tokens=1_000_000_000))
    found = costs(CONFIG, evidence, None, Store(tmp_path))
    assert found.recipes[SELECTED].tokens == 200_000 * 10 * 5 + 10 * (200_000 + 50 * 4000 * 100)
    assert found.whole_pool
    assert found.whole_pool.tokens == 1_000_000_000
    assert found.selection_share() is None  # FLOPs are unknown without the dimensions of the model
    share = costs(CONFIG, evidence, size, Store(tmp_path)).selection_share()
    assert share == pytest.approx(10 * 20_200_000 / 1e9, rel=0.05)


def test_dapt_is_costed_for_the_configured_length(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, max_steps=7))
    assert tokens(config, Evidence([], CORPUS), tmp_path) == {DAPT: 7 * 10 * 50}
    assert tokens(config, Evidence([], text(tokens=None)), tmp_path) == {DAPT: 7 * 10 * 50}
    assert tokens(CONFIG, Evidence([], text(tokens=None)), tmp_path) == {DAPT: None}


def test_fine_tuning_takes_fewer_passes_for_large_tasks_and_one_pass_for_frozen_models(tmp_path: Path) -> None:
    large = Evidence([task(examples=5001)])
    assert tokens(CONFIG, large, tmp_path)[AS_IT_IS] == 200_000 * 3 * 5
    frozen = dataclasses.replace(CONFIG, finetune=FinetuneConfig(mode="feature_extraction"))
    assert tokens(frozen, large, tmp_path)[AS_IT_IS] == 200_000


def test_tapt_also_trains_on_the_pool(tmp_path: Path) -> None:
    found = tokens(CONFIG, Evidence([TASK], None, None, text(tokens=1_000)), tmp_path)
    assert found[TAPT] == 100 * 201_000 + 200_000 * 50
    assert tokens(CONFIG, Evidence([TASK], None, None, text(tokens=None)), tmp_path)[TAPT] is None


def test_work_hours_and_price(size: ModelSize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "expected_rate", lambda *_: (1e9, "as told"))
    found = costs(CONFIG, EVIDENCE, size, Store(tmp_path))
    fine_tuning = 1e7 * training_flops(size, Workload(50, 0))
    dapt = 4_500_000 * training_flops(size, Workload(50, 0.15))
    assert found.recipes[AS_IT_IS].flops == pytest.approx(fine_tuning)
    assert found.recipes[DAPT].flops == pytest.approx(fine_tuning + dapt)
    assert found.recipes[DAPT].device_hours == pytest.approx((fine_tuning + dapt) / 1e9 / 3600)
    assert found.recipes[DAPT].price == pytest.approx((fine_tuning + dapt) / 1e9 / 3600 * 2)
    assert found.rate_from == "as told"
    assert found.share(TAPT, DAPT) == pytest.approx(2e7 / 4.5e6)
    frozen = dataclasses.replace(CONFIG, finetune=FinetuneConfig(mode="linear_probe"))
    once = costs(frozen, Evidence([TASK]), size, Store(tmp_path)).recipes[AS_IT_IS]
    assert once.flops == pytest.approx(200_000 * forward_flops(size, Workload(50, 0)))


def test_passes_that_a_method_adds_are_costed(size: ModelSize, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, method=MethodConfig("das"), method_options=DasOptions(contrast_cost="exact"))
    found = costs(config, Evidence([], CORPUS), size, Store(tmp_path)).recipes[DAPT]
    assert found.flops == pytest.approx(4_500_000 * training_flops(size, Workload(50, 0.15, Added(2.0))))


def test_only_tokens_are_known_if_the_model_is_unknown(tmp_path: Path) -> None:
    found = costs(CONFIG, EVIDENCE, None, Store(tmp_path))
    assert (found.recipes[DAPT].flops, found.recipes[DAPT].device_hours, found.recipes[DAPT].price) == (None,) * 3
    assert found.share(TAPT, DAPT) is None


LARGE = text(documents=10_000_000, tokens=1_000_000_000)


def proposed(pool: TextEvidence | None, tasks: Any = (TASK,), **select: Any) -> ProposedSelection | None:
    return propose(Config(select=SelectConfig(**select)), Evidence(list(tasks), candidates=pool))


def test_fifty_documents_for_each_example() -> None:
    assert proposed(LARGE) == ProposedSelection("classifier", 200_000, 20_000_000, "select.tokens=20000000", 10)
    both = proposed(LARGE, [TASK, task(examples=1000)])
    assert both
    assert both.documents == 250_000


def test_ten_passes_over_a_selection_are_at_most_half_of_a_pass_over_the_pool() -> None:
    found = proposed(text(documents=100_000, tokens=9_000_000))
    assert found
    assert (found.documents, found.tokens) == (5000, 450_000)
    assert found.tokens
    assert found.tokens * found.passes == 9_000_000 / 2
    # the proposed selection would have fewer than one document per example
    assert proposed(text(documents=79_999)) is None


@pytest.mark.parametrize(("pool", "tasks"), [(None, [TASK]), (LARGE, [])])
def test_nothing_is_proposed_without_a_pool_or_a_task(pool: TextEvidence | None, tasks: list[Any]) -> None:
    assert proposed(pool, tasks) is None


def test_a_number_of_documents_is_proposed_if_the_size_of_the_pool_is_unknown() -> None:
    unknown = text(documents=None, bytes=None, tokens=None)
    assert proposed(unknown) == ProposedSelection("classifier", 200_000, None, "select.per_example=50", 10)


@pytest.mark.parametrize(
    ("select", "documents", "tokens"),
    [({"documents": 70}, 70, 7000), ({"per_example": 2}, 8000, 800_000), ({"tokens": 1050}, 11, 1050)],
)
def test_a_configured_budget_is_used(select: dict[str, int], documents: int, tokens: int) -> None:
    kind = [{"dsir": {"noise": 0}}, "classifier"]
    found = proposed(LARGE, kind=kind, **select)
    assert found == ProposedSelection("dsir -> classifier", documents, tokens, "", 10)
