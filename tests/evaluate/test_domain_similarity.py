"""Tests the similarity of domains, and the files that the similarity stage writes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy

from adapt.corpus.token_shards import write_shard
from adapt.evaluate import domain_similarity as module
from adapt.evaluate.domain_similarity import (
    FILE,
    PICTURE,
    SMOOTHING,
    compare_domains,
    sample_texts,
    similarities,
    word_overlaps,
)
from adapt.evaluate.measure_model import LOSSES_FILE
from adapt.evaluate.measurements import Similar
from adapt.model.locate import Pretrained


@pytest.fixture
def corpora(tmp_path: Path) -> dict[str, Path]:
    """Folders of two prepared corpora with words of the tiny tokenizer, keyed by domain."""
    found = {}
    for place, name in enumerate(("cells", "code")):
        folder = tmp_path / name
        folder.mkdir()
        write_shard(folder / "train-000000-000000.arrow", [[6 + place, 7, 8], [6 + place, 7]] * 3, 1000, {})
        found[name] = folder
    return found


def test_domains_are_compared_by_words(tiny_bert: Path, corpora: dict[str, Path], tmp_path: Path):
    found = compare_domains(corpora, [], Pretrained(tiny_bert, tiny_bert, False), 100, tmp_path)
    assert Similar(**json.loads((tmp_path / FILE).read_text())) == found
    assert found.domains == ["cells", "code"]
    assert found.documents == [6, 6]
    assert found.model_loss is None
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


def test_domains_are_compared_by_losses_of_models(tiny_bert: Path, corpora: dict[str, Path], tmp_path: Path):
    evaluations = []
    for place in range(2):
        folder = tmp_path / f"evaluation-{place}"
        folder.mkdir()
        losses = {name: {"losses": [1.0 + place, 3.0], "counts": [1, 3]} for name in corpora}
        (folder / LOSSES_FILE).write_text(json.dumps(losses))
        evaluations.append(folder)
    found = compare_domains(corpora, evaluations, Pretrained(tiny_bert, tiny_bert, False), 100, tmp_path)
    assert found.model_loss == [[1.0, 1.0], [1.25, 1.25]]


CELLS = ["cells divide", "cells grow", "cells the of divide", "mice eat cells"]
CODE = ["programs divide work", "programs grow", "programs the of run", "programs divide"]


def test_overlap_of_the_most_frequent_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "TOP_WORDS", 3)
    # The three most frequent words of "cells": cells (4), divide (2) and eat (1, before grow and mice by alphabet).
    # Those of "code": programs (4), divide (2) and grow (1). One of three words is in both.
    found = similarities({"cells": CELLS, "code": CODE})
    assert found.overlap == [[1, pytest.approx(1 / 3)], [pytest.approx(1 / 3), 1]]
    assert found.documents == [4, 4]


def test_jaccard_of_words_in_three_documents():
    # Words in at least three documents: {cells} in the first, {cells, divide, programs} in the second domain.
    assert similarities({"a": CELLS, "b": CELLS + CODE}).jaccard[0][1] == pytest.approx(1 / 3)
    assert similarities({"a": CELLS, "b": CODE}).jaccard == [[1, 0], [0, 1]]


def test_cross_loss_is_the_divergence_of_word_frequencies():
    words = ["cells", "divide", "eat", "grow", "mice", "programs", "run", "work"]
    cells = np.array([4, 2, 1, 1, 1, 0, 0, 0]) + SMOOTHING
    code = np.array([0, 2, 0, 1, 0, 4, 1, 1]) + SMOOTHING
    found = similarities({"cells": CELLS, "code": CODE}).cross_loss
    assert len(words) == len(cells)
    # Row: the domain of the word frequencies that predict. Column: the domain of the predicted text.
    assert found[0][1] == pytest.approx(entropy(code / code.sum(), cells / cells.sum()))
    assert found[1][0] == pytest.approx(entropy(cells / cells.sum(), code / code.sum()))
    assert [found[0][0], found[1][1]] == pytest.approx([0, 0])


def test_a_domain_without_words_has_no_similarity():
    found = similarities({"none": ["the of and"], "code": CODE})
    assert found.overlap[0][1] == 0
    assert found.jaccard[0][1] == 0
    assert math.isfinite(found.cross_loss[0][1])


class Decoder:
    def batch_decode(self, documents: list[list[int]], skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(f"word{token}" for token in tokens) for tokens in documents]


def test_samples_take_heldout_documents_first(tmp_path: Path):
    write_shard(tmp_path / "heldout-000000-000000.arrow", [[1], [2], [3]], 100, {})
    write_shard(tmp_path / "train-000000-000000.arrow", [[number] for number in range(10, 30)], 100, {})
    texts = sample_texts(tmp_path, Decoder(), 8)
    assert sorted(texts[:3]) == ["word1", "word2", "word3"]
    assert len(set(texts)) == 8
    assert sample_texts(tmp_path, Decoder(), 8) == texts
    assert len(sample_texts(tmp_path, Decoder(), 2)) == 2


def test_overlap_compares_samples_of_equal_size() -> None:
    """Samples of equal size are compared, so a long text is not more similar just because it has more words."""
    words = [f"w{number}" for number in range(1000)]
    texts = {
        "task": [" ".join(words[:100])],
        "long": [" ".join(words[950:] + words[:950])],
        "short": [" ".join(words[:100])],
    }
    found = word_overlaps(texts)
    assert found["task"] == [pytest.approx(0.5), pytest.approx(1.0)]
    assert found["long"] == [pytest.approx(0.5), pytest.approx(0.5)]
