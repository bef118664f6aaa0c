"""Examples tokenized by pieces are those tokenized by the library."""

import numpy as np
import pytest

from adapt.model.tokenize.quick import QuickTokenizer
from adapt.task.encode import encode
from adapt.task.read import Example
from tests.objective.rows import wrapped
from tests.samples import sentences
from tests.tokenizers import FAMILIES

TEXTS = [*sentences(30, seed=8), "", "a <mask> b", "naïve  café\nit's"]


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_examples_are_the_librarys(family: str, pairs: bool) -> None:
    tokenizer = wrapped(FAMILIES[family]())
    tokenizer.split_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens = True
    examples = [Example("x", "0", text, "a pair" if pairs else None, (), ("yes",)) for text in TEXTS]
    expected = encode(examples, "single_label", ["yes"], tokenizer)
    found = encode(examples, "single_label", ["yes"], tokenizer, QuickTokenizer(tokenizer.backend_tokenizer, worth=0))
    for name in ("tokens", "segments"):
        pairs_of = zip(getattr(found, name), getattr(expected, name), strict=True)
        assert all(np.array_equal(mine, theirs) and mine.dtype == theirs.dtype for mine, theirs in pairs_of)
    assert found.labels == expected.labels
