"""Tests that a serialized tokenizer gives the same tokens as the loaded tokenizer, for every family."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import BertConfig

from adapt.model.locate import Pretrained
from adapt.model.tokenize.text_tokenizer import TextTokenizer, text_tokenizer, tokenizer_of, written_tokenizer
from adapt.model.tokenizer import load_text_tokenizer
from tests.objective.rows import wrapped
from tests.tokenizers import FAMILIES, ODD, SPECIAL

TEXTS = [*ODD, *(f"as {name} here, x{name}y" for name in SPECIAL), "", " a  b\n", "\U0001f642 \ud83d"[:2]]


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_offsets_of_all_texts_are_equal(tmp_path: Path, family: str) -> None:
    loaded = wrapped(Tokenizer.from_str(FAMILIES[family]().to_str()))
    loaded.save_pretrained(tmp_path)
    BertConfig(vocab_size=len(loaded), pad_token_id=loaded.pad_token_id).save_pretrained(tmp_path)
    pretrained = Pretrained(tmp_path, tmp_path)
    written = written_tokenizer(text_tokenizer(pretrained))
    assert written is not None
    copy, whole = tokenizer_of(written), load_text_tokenizer(pretrained)
    assert (copy.size, copy.unknown, copy.end) == (len(whole), whole.unk_token_id, whole.eos_token_id)
    for special in (False, True):
        ours = copy.backend.encode_batch(TEXTS, add_special_tokens=special)
        theirs = whole.backend_tokenizer.encode_batch(TEXTS, add_special_tokens=special)
        for one, other in zip(ours, theirs, strict=True):
            assert (one.ids, one.offsets, one.word_ids) == (other.ids, other.offsets, other.word_ids)


def test_a_tokenizer_with_python_code_is_not_serialized() -> None:
    class Own:
        def pre_tokenize(self, text: object) -> None:
            """Leaves the text unsplit."""

    backend = Tokenizer.from_str(FAMILIES["wordpiece"]().to_str())
    backend.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Own())
    assert written_tokenizer(TextTokenizer(backend, 1, None, None)) is None
