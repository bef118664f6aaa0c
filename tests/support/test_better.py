"""Tests the declarations of whether higher or lower values of a metric are better."""

from dataclasses import dataclass
from typing import Any

import pytest

from adapt.show.report.sequence_runs import MEASURES, ONE
from adapt.stage.domain_sequence import SequenceResult
from adapt.stage.export_model import Adapted
from adapt.stage.finetuning import Finetuned, Scored
from adapt.support.better import Less, More, better_directions
from tests.stage.test_values import KINDS

COUNTS = frozenset(
    {
        *("parts", "bytes", "empty_files", "documents", "in_other_splits", "duplicates", "clusters"),
        *("on_the_other_side", "heldout_documents", "heldout_tokens", "train_documents", "train_tokens", "characters"),
        *("dimension", "vectors", "lists", "tokens", "pool", "near_copies", "passed", "steps"),
        *("vocabulary", "words", "rows", "candidates", "left_out", "before", "used", "tensors", "new_tokens"),
        *("seed", "seeds", "examples", "examples_without_leaks", "epochs", "best_epoch", "max_length"),
        *("groups", "domains", "best", "stages", "shared", "device_hours", "apparent", "gained", "selection"),
        *("majority_score", "fertility_before", "texts", "trained_parameters", "least_plasticity"),
        *("embeddings_share", "bad", "new_parameters", "exported_step", "evaluation_share"),
        "density",
        *("cut", "pairs", "tokens_per_device_second", "look", "level", "margin", "recipes", "significant"),
        "equal",
        *("layers", "documents", "queries", "words", "general_words", "distinct", "unknown_weight"),
        *("unknown_share", "empty_texts", "vanished_words", "conflicting", "device_seconds", "overlap", "ngram"),
    }
)
"""Metrics for which neither higher nor lower is better, or that no job reports. Searches cannot optimize them."""


@dataclass(frozen=True)
class Result:
    score: More[float]
    loss: Less[float | None]
    count: int
    name: str
    by_name: dict[str, float]
    steps: Less[int] = 3


def test_an_annotation_declares_the_direction_and_keeps_the_type() -> None:
    assert better_directions(Result) == {"score": 1, "loss": -1, "count": 0, "steps": -1}
    assert Result(0.5, None, 2, "a", {}).steps == 3


def test_directions_of_real_results() -> None:
    expected = {
        Adapted: ({"tokens_per_s", "mfu"}, {"losses.domain.after", "losses.general.change", "losses.general.overlap"}),
        Finetuned: ({"score", "macro_f1", "entity_f1", "recall"}, {"ece", "nll", "brier", "seconds"}),
        Scored: ({"mean", "low"}, {"deviation", "degenerate"}),
        SequenceResult: (
            {"average", "learning", "forward_transfer", "loss_forward_transfer"},
            {"forgetting", "loss_average", "loss_learning", "loss_forgetting", "general_change", "overlap"},
        ),
    }
    for result, (high, low) in expected.items():
        assert {better_directions(result)[name] for name in low} == {-1}
        assert {better_directions(result)[name] for name in high} == {1}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_number_of_every_result_has_a_direction_or_is_listed_here(kind: Any) -> None:
    silent = {name for name, way in better_directions(kind.result_type()).items() if not way}
    assert {*silent} <= COUNTS


def test_no_name_has_two_directions() -> None:
    declared = {(name, way) for kind in KINDS for name, way in better_directions(kind.result_type()).items() if way}
    assert len({name for name, _ in declared}) == len(declared)


def test_reports_and_searches_use_the_same_directions() -> None:
    declared = better_directions(SequenceResult)
    assert all((measure.better < 0) == (declared.get(measure.name) == -1) for measure in MEASURES)
    assert {measure.name for measure in MEASURES} - {ONE} <= {*declared}
