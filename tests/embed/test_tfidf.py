"""Tests TF-IDF with truncated SVD against scikit-learn."""

import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from threadpoolctl import threadpool_limits

from adapt.embed.bags import WORD
from adapt.support.errors import DataError
from tests.embed.toys import loaded, topical, votes


def test_vectors_are_those_of_scikit_learn(tmp_path: Path) -> None:
    texts, _ = topical(120)
    others, _ = topical(30, seed=1)
    weighed = TfidfVectorizer(token_pattern=WORD, stop_words="english", min_df=2, sublinear_tf=True, dtype=np.float32)
    expected = TruncatedSVD(5, random_state=0).fit(weighed.fit_transform(texts)).transform(weighed.transform(others))
    found = loaded("tfidf", tmp_path, texts=texts, dimension=5).embed(others)
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    assert (found.seen, found.unknown) == (30, 0)


def test_texts_are_nearest_to_texts_of_their_topic(tmp_path: Path) -> None:
    texts, labels = topical(100)
    assert votes(loaded("tfidf", tmp_path, texts=texts, dimension=4).embed(texts).vectors, labels) > 0.95


def test_vectors_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    """Checks this with a table so large that the products of its SVD are computed by several threads."""
    draw = random.Random(0)
    letters = str.maketrans("0123456789", "abcdefghij")
    texts = [" ".join(f"word{int(draw.paretovariate(0.3)) % 1500}" for _ in range(60)) for _ in range(1200)]
    texts = [text.translate(letters) for text in texts]
    vectors = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            vectors.append(loaded("tfidf", tmp_path, texts=texts).embed(texts[:50]).vectors)
    np.testing.assert_array_equal(*vectors)


def test_a_text_without_a_known_word_is_unknown_and_has_the_vector_zero(tmp_path: Path) -> None:
    found = loaded("tfidf", tmp_path, texts=topical(50)[0]).embed(["xylophone zebra", "court of the sea"])
    assert (found.vectors[0] == 0).all()
    assert (found.vectors[1] != 0).any()
    assert (found.seen, found.unknown) == (2, 1)


def test_texts_without_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fewer than 10 words occur in at least") as caught:
        loaded("tfidf", tmp_path, texts=["1 2 3", "a b c"])
    assert "transformer" in caught.value.fix


def test_dimensions_are_limited_by_the_number_of_texts(tmp_path: Path) -> None:
    texts = topical(15)[0]
    vectors = loaded("tfidf", tmp_path, texts=texts).embed(texts).vectors
    assert vectors.shape[1] <= 34
    assert np.isfinite(vectors).all()
