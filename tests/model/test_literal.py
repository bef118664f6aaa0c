"""Special tokens that are written out in a text are text, for every kind of tokenizer."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertConfig, PreTrainedTokenizerFast

from adapt.model.literal import load_text_tokenizer
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from tests.objective.rows import wrapped
from tests.tokenizers import FAMILIES, ODD, SPECIAL

TEXTS = [
    text for name in SPECIAL for text in (name, f"as {name} here", f"<b>x{name}y</b>", f"{name}{name}.", f"({name})")
]


@pytest.fixture(params=FAMILIES)
def pretrained(request: pytest.FixtureRequest, tmp_path: Path) -> Pretrained:
    tokenizer = wrapped(Tokenizer.from_str(FAMILIES[request.param]().to_str()))
    tokenizer.save_pretrained(tmp_path)
    BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id).save_pretrained(tmp_path)
    return Pretrained(tmp_path, tmp_path)


def found(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """Special tokens in the text itself; an unknown character gives the unknown token rightly."""
    tokens = [tokenizer.convert_ids_to_tokens(number) for number in tokenizer(text, add_special_tokens=False).input_ids]
    return [token for token in tokens if token in SPECIAL and token != "<unk>"]


def test_a_special_token_in_a_text_is_text(pretrained: Pretrained) -> None:
    tokenizer = load_text_tokenizer(pretrained)
    for text in TEXTS:
        assert found(tokenizer, text) == []
        assert [each.ids for each in tokenizer.backend_tokenizer.encode_batch_fast([text])] == [
            tokenizer(text).input_ids
        ]
    assert tokenizer("<unk>", add_special_tokens=False).input_ids != [tokenizer.unk_token_id]


def test_the_letters_of_a_special_token_have_their_places(pretrained: Pretrained) -> None:
    encoding = load_text_tokenizer(pretrained).backend_tokenizer.encode("x<mask>y", add_special_tokens=False)
    assert {place for begin, end in encoding.offsets for place in range(begin, end)} == set(range(8))
    assert len(encoding.ids) > 4


def test_all_other_text_and_the_tokens_around_it_are_as_before(pretrained: Pretrained) -> None:
    plain, literal = load_tokenizer(pretrained.model), load_text_tokenizer(pretrained)
    for text in [*ODD, "a < b > c", "<b>bold</b>", "[s] masks", "<s", "s>", ""]:
        assert literal(text).input_ids == plain(text).input_ids
        assert literal(text, "pair").input_ids == plain(text, "pair").input_ids
    assert literal("a").input_ids[0] == plain.bos_token_id


def test_a_model_that_is_handed_on_still_knows_its_mask(pretrained: Pretrained, tmp_path: Path) -> None:
    before = (pretrained.tokenizer / "tokenizer.json").read_bytes()
    load_text_tokenizer(pretrained)
    load_tokenizer(pretrained.model).save_pretrained(tmp_path / "out")
    assert (pretrained.tokenizer / "tokenizer.json").read_bytes() == before
    assert found(AutoTokenizer.from_pretrained(tmp_path / "out"), "as <mask> here") == ["<mask>"]
