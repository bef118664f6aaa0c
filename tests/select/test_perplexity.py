"""Tests selection by a model's loss against the loss of each document measured separately."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from adapt.config import Config, EvaluationConfig
from adapt.evaluate.losses import losses_on
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.select.document_losses import DocumentLosses, mask_numbers
from adapt.select.perplexity import ByPerplexity, PerplexityOptions
from adapt.select.pool import Document
from adapt.support.errors import ConfigError, DataError
from tests.samples import sentences
from tests.select.pools import given, numbered, ranked

CONFIG = Config(evaluation=EvaluationConfig(sequence_length=32))
POOL = sentences(40, shortest=2, longest=45)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the reservation of GPUs, which these tests do not use."""
    monkeypatch.setattr("adapt.evaluate.evaluation_task.hide_unreserved_gpus", lambda: None)


@pytest.fixture(scope="module")
def other_bert(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model that differs from the tiny model in its first word embeddings."""
    folder = tmp_path_factory.mktemp("other")
    model = load_model(tiny_bert)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[5:100].mul_(0.3)
    model.save_pretrained(folder)
    load_tokenizer(tiny_bert).save_pretrained(folder)
    return folder


def losses(model: Path, texts: list[str], most: int = 512) -> np.ndarray:
    """Returns the mean loss per predicted token of each text.

    Texts are measured one at a time. The index of a text determines its masks.
    """
    loaded, tokenizer = load_model(model), load_tokenizer(model)
    found = []
    for number, text in enumerate(texts):
        tokens = [np.array(tokenizer(text)["input_ids"][:most])]
        total, count = losses_on(tokens, mask_numbers([number]), loaded, tokenizer, CONFIG, torch.device("cpu"))
        found.append(total[0] / count[0])
    return np.array(found)


def test_a_band_takes_the_documents_between_two_quantiles_at_random(tiny_bert: Path) -> None:
    models = {"": Pretrained(tiny_bert, tiny_bert)}
    selection = ByPerplexity(PerplexityOptions(low=0.2, high=0.6), 0)
    found = ranked(selection, numbered(POOL), [], config=CONFIG, models=models)
    alone = losses(tiny_bert, POOL)
    low, high = np.quantile(alone, [0.2, 0.6])
    assert (selection.low, selection.high) == pytest.approx((low, high), abs=1e-4)  # the sample is the whole pool
    inside = {place for place in range(40) if low - 1e-4 <= alone[place] <= high + 1e-4}
    assert {place for place, _ in found} == inside
    assert 14 <= len(inside) <= 18
    assert [place for place, _ in found] != sorted(inside, key=lambda place: -alone[place])
    again = ByPerplexity(PerplexityOptions(low=0.2, high=0.6), 0)
    assert ranked(again, numbered(POOL), [], config=CONFIG, models=models) == found


def test_with_a_reference_the_score_is_the_difference_of_the_losses(tiny_bert: Path, other_bert: Path) -> None:
    models = {"": Pretrained(tiny_bert, tiny_bert), "base": Pretrained(other_bert, other_bert)}
    options = PerplexityOptions(reference="base", max_tokens=20)
    selection = ByPerplexity(options, 0)
    assert selection.models() == ("", "base")
    found = dict(ranked(selection, numbered(POOL), [], config=CONFIG, models=models))
    number = DocumentLosses(models[""], CONFIG, 20)(numbered(POOL).documents)[1]
    # documents of at most 20 tokens have 1 to 3 predictions, but the score divides by at least 16 predictions
    assert set(number.tolist()) == {1, 2, 3}
    expected = (losses(other_bert, POOL, 20) - losses(tiny_bert, POOL, 20)) * number / 16
    assert [found[place] for place in range(40)] == pytest.approx(expected, abs=1e-4)
    assert np.std(expected) > 0.001
    # the key contains no path of the reference model, because the model is identified by its content
    assert selection.what()["reference"] is True


def test_losses_do_not_depend_on_other_measured_documents(tiny_bert: Path) -> None:
    of = DocumentLosses(Pretrained(tiny_bert, tiny_bert), CONFIG, 512)
    documents = numbered(POOL, 2**45, 2**32).documents
    whole = of(documents)[0]
    assert of(documents[10:20])[0] == pytest.approx(whole[10:20], abs=1e-4)
    assert np.isnan(of([Document("", 1)])[0][0])  # an empty text has no loss, because it only has special tokens


def test_a_document_without_tokens_is_never_taken(tiny_bert: Path) -> None:
    models = {"": Pretrained(tiny_bert, tiny_bert)}
    pool = numbered(["", *POOL[:6]])
    selection = ByPerplexity(PerplexityOptions(low=0.0, high=1.0), 0)
    assert {place for place, _ in ranked(selection, pool, [], config=CONFIG, models=models)} == set(range(1, 7))


def test_a_sample_of_the_pool_finds_the_ends_of_the_band(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapt.select.perplexity.SAMPLE", 10)
    models = {"": Pretrained(tiny_bert, tiny_bert)}
    pool = numbered(random.Random(0).sample(POOL, 30))
    ranked(ByPerplexity(PerplexityOptions(), 0), pool, [], config=CONFIG, models=models)
    assert pool.passes == 2  # the sample is read again by the process with the model


def test_an_empty_band_and_a_pool_without_tokens_are_refused(tiny_bert: Path) -> None:
    models = {"": Pretrained(tiny_bert, tiny_bert)}
    with pytest.raises(ConfigError, match=r"perplexity\.low is 0\.5 and perplexity\.high is 0\.5"):
        ByPerplexity(PerplexityOptions(low=0.5, high=0.5), 0).learn(given(numbered(POOL)))
    with pytest.raises(DataError, match="no document of the pool has a token to predict"):
        ByPerplexity(PerplexityOptions(), 0).learn(given(numbered([""]), config=CONFIG, models=models))
