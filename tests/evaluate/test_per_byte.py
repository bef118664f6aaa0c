"""Losses a byte: their value, their intervals, and what tokenizers and models they can be compared across."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from adapt.config import EvaluationConfig, ObjectiveConfig
from adapt.corpus.shards.encode import Encode
from adapt.corpus.shards.prepare import _row
from adapt.errors import DataError
from adapt.evaluate.matrix import compare_models
from adapt.evaluate.measure import LOSSES_FILE
from adapt.evaluate.mlm_loss import Heldout, heldout_losses, predictable_tokens
from adapt.evaluate.per_byte import TextLosses, byte_change, byte_loss
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.build import make
from adapt.objective.causal import CausalLanguageModelling
from tests.samples import sentences

EVALUATION = EvaluationConfig(sequence_length=16, micro_batch=4)
TEXTS = [*sentences(20, seed=5), "Ünïcode zählt in Bytes.", "jxfd"]


@pytest.fixture
def corpus(tiny_bert: Path, tmp_path: Path) -> Path:
    """All of the texts, held out."""
    Encode(Pretrained(tiny_bert, tiny_bert), tmp_path, 1.0)(_row(0, 0, TEXTS, None))
    return tmp_path


def drawn(seed: int, documents: int = 40) -> TextLosses:
    draw = np.random.default_rng(seed)
    predictable = draw.integers(10, 99, documents)
    counts = np.maximum(1, predictable // 7)
    return TextLosses(counts * draw.normal(3, 0.3, documents), counts, predictable, predictable * 4)


def test_a_sample_knows_how_long_its_texts_are(corpus: Path) -> None:
    sample = Heldout.sample(corpus, EVALUATION)
    assert sample.sizes == [len(TEXTS[number].encode()) for number in sample.documents]
    assert sample.only([3, 1]).sizes == [sample.sizes[3], sample.sizes[1]]


def test_what_could_be_predicted_is_every_ordinary_token(corpus: Path, tiny_bert: Path) -> None:
    tokenizer, sample = load_tokenizer(tiny_bert), Heldout.sample(corpus, EVALUATION)
    objective = make(ObjectiveConfig(), tokenizer, 0)
    special = set(tokenizer.all_special_ids)
    ordinary = [sum(token not in special for token in tokens.tolist()) for tokens in sample.tokens]
    found = predictable_tokens(objective, sample, EVALUATION)
    assert all(0 <= more <= 1 for more in found - ordinary)  # a piece of special tokens alone predicts one of them
    assert found.sum() <= sum(ordinary) + 1


def test_of_a_causal_model_it_is_the_surprise_of_the_text_over_its_length(corpus: Path) -> None:
    sample, objective = Heldout.sample(corpus, EVALUATION), CausalLanguageModelling()
    uniform = torch.nn.Module()

    def losses(model: torch.nn.Module, corrupted: object) -> torch.Tensor:
        return torch.full((int(corrupted.positions.sum()),), math.log(50))  # type: ignore[attr-defined]

    objective.losses = losses  # type: ignore[method-assign]
    total, counts = heldout_losses(uniform, objective, sample, EVALUATION, torch.device("cpu"))
    predictable = predictable_tokens(objective, sample, EVALUATION)
    assert predictable.tolist() == counts.tolist()
    assert sample.sizes
    measured = TextLosses(total, counts, predictable, np.array(sample.sizes))
    assert byte_loss(measured, 10).value == pytest.approx(counts.sum() * math.log(50) / sum(sample.sizes))


def test_a_model_loses_as_much_a_byte_whatever_share_is_masked(corpus: Path, tiny_bert: Path) -> None:
    """What is not asked is made up for: masking twice as much leaves the figure near where it was."""
    model, sample = load_model(tiny_bert), Heldout.sample(corpus, EVALUATION)
    found = []
    for share in (0.15, 0.3):
        objective = make(ObjectiveConfig(mask_fraction=share), load_tokenizer(tiny_bert), 0)
        losses, counts = heldout_losses(model, objective, sample, EVALUATION, torch.device("cpu"))
        predictable = predictable_tokens(objective, sample, EVALUATION)
        assert counts.sum() < 0.5 * predictable.sum()
        found.append(byte_loss(TextLosses(losses, counts, predictable, np.array(sample.sizes)), 10).value)
    assert found[0] == pytest.approx(found[1], rel=0.1)  # a model that knows nothing loses alike everywhere


def test_intervals_are_those_of_a_plain_bootstrap_over_documents() -> None:
    first, second = drawn(0), drawn(1)
    draw, found = np.random.default_rng(5), []
    for _ in range(3000):
        some = draw.integers(0, 40, 40)
        each = [
            (one.losses[some].sum() / one.counts[some].sum()) * (one.predictable[some].sum() / one.sizes[some].sum())
            for one in (first, second)
        ]
        found.append(each[1] - each[0])
    change = byte_change(first, second, 3000)
    assert change.value == pytest.approx(byte_loss(second, 10).value - byte_loss(first, 10).value)
    width = np.quantile(found, 0.975) - np.quantile(found, 0.025)
    assert (change.low, change.high) == pytest.approx(tuple(np.quantile(found, [0.025, 0.975])), abs=0.1 * width)


# Models of different tokens side by side


def evaluation(folder: Path, measured: TextLosses, sizes: bool = True) -> Path:
    folder.mkdir()
    values = {name: column.tolist() for name, column in vars(measured).items() if sizes or name != "sizes"}
    (folder / LOSSES_FILE).write_text(json.dumps({"cells": values}))
    return folder


def halved(measured: TextLosses) -> TextLosses:
    """The same losses in tokens twice as long, each of which loses twice as much."""
    counts = np.maximum(1, measured.counts // 2)
    return TextLosses(measured.losses * 2 * counts / measured.counts, counts, measured.predictable / 2, measured.sizes)


def test_longer_tokens_that_lose_as_much_in_all_are_no_worse(tmp_path: Path) -> None:
    counts = np.full(40, 10)
    base = TextLosses(counts * np.random.default_rng(0).normal(3, 0.3, 40), counts, counts * 7, counts * 30)
    folders = {
        "base": evaluation(tmp_path / "base", base),
        "long": evaluation(tmp_path / "long", halved(base)[:35]),  # a limit in tokens ends the sample elsewhere
    }
    found = compare_models(folders, ["cells"], 50, tmp_path, "byte")
    assert (found.unit, found.documents) == ("byte", {"cells": 35})
    assert found.loss[1][0] == pytest.approx(found.loss[0][0]) == pytest.approx(byte_loss(base[:35], 10).value)
    assert found.change[1][0] == pytest.approx(0, abs=1e-9)
    assert (tmp_path / "matrix.png").exists()


def test_other_documents_are_refused(tmp_path: Path) -> None:
    folders = {str(seed): evaluation(tmp_path / str(seed), drawn(seed)) for seed in (0, 1)}
    with pytest.raises(DataError, match="not measured on the same documents of cells"):
        compare_models(folders, ["cells"], 50, tmp_path, "byte")


def test_texts_of_an_older_version_are_refused_by_name(tmp_path: Path) -> None:
    folders = {"base": evaluation(tmp_path / "base", drawn(0), sizes=False)}
    with pytest.raises(DataError, match=r"does not know how long the texts of cells are[\s\S]*delete .*base"):
        compare_models(folders, ["cells"], 50, tmp_path, "byte")
