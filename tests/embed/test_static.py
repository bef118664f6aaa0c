"""The mean of token embeddings, against the model's own table."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, BertModel

from tests.embed.toys import loaded
from tests.samples import sentences


@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_vectors_are_means_over_the_texts_own_tokens(tiny_bert: Path, tmp_path: Path, at_once: int) -> None:
    texts = [*sentences(9), "ξ ∂ model", ""]
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    table = BertModel.from_pretrained(tiny_bert).get_input_embeddings().weight.detach().numpy()
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    expected = [table[each].mean(0) if each else np.zeros(table.shape[1]) for each in ids]
    found = loaded("static", tmp_path, tiny_bert, texts_at_once=at_once).embed(texts)
    np.testing.assert_allclose(found.vectors, expected, atol=1e-6)
    unknown = sum(each.count(tokenizer.unk_token_id) for each in ids)
    assert (found.seen, found.unknown) == (sum(map(len, ids)), unknown)
    assert unknown == 2
