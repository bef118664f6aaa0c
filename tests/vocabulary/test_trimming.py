"""Tests that trimming a vocabulary keeps all tokens of the domain's texts, with unchanged logits."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from adapt.support.errors import ModelError
from adapt.vocabulary.trimming import Trimmed, keep_rows, trim_tokenizer, with_new_ids
from tests.model.architectures import random_model
from tests.samples import sentences
from tests.tokenizers import FAMILIES, SPECIAL, TEXTS, wordpiece

DOMAIN = [*TEXTS[:6], "naïve café"]


def trimmed(family: str) -> tuple[Tokenizer, Trimmed]:
    backend = FAMILIES[family]()
    used = {number for text in DOMAIN for number in backend.encode(text).ids}
    return backend, trim_tokenizer(backend, used, {backend.token_to_id(name) for name in SPECIAL})


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_the_domain_have_the_same_tokens(family: str) -> None:
    backend, found = trimmed(family)
    assert len(found.kept) < backend.get_vocab_size()
    for text in DOMAIN:
        before, after = backend.encode(text), found.backend.encode(text)
        assert after.tokens == before.tokens
        assert [found.kept[number] for number in after.ids] == before.ids
        assert found.backend.decode(after.ids) == backend.decode(before.ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_other_texts_in_ascii_have_no_unknown_tokens(family: str) -> None:
    backend, found = trimmed(family)
    for text in sentences(30, seed=99):
        known = backend.token_to_id("<unk>") in backend.encode(text).ids
        assert (found.backend.token_to_id("<unk>") in found.backend.encode(text).ids) == known


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_keep_their_positions(family: str) -> None:
    backend, found = trimmed(family)
    assert {name for name in SPECIAL if found.backend.token_to_id(name) is None} == set()
    before, after = json.loads(backend.to_str()), json.loads(found.backend.to_str())
    assert [token["content"] for token in after["added_tokens"]] == [
        token["content"] for token in before["added_tokens"]
    ]


@pytest.mark.parametrize("unknown", [0, 1])
def test_an_unknown_token_stays_whatever_its_id(unknown: int) -> None:
    special = [("<s>", 0.0)]
    special.insert(unknown, ("<unk>", 0.0))
    backend = Tokenizer(models.Unigram([*special, ("▁aa", -1.0), ("▁bb", -2.0)], unk_id=unknown))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    found = trim_tokenizer(backend, [2], [])
    assert found.kept == [unknown, 2]
    assert found.backend.encode("aa bb").ids == [1, 0]


def test_a_bpe_tokenizer_keeps_the_bytes_with_which_it_writes_other_characters() -> None:
    # As in Llama's tokenizer: a character that is not in the vocabulary is written as the bytes of its UTF-8 form.
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    model = models.BPE({token: number for number, token in enumerate(tokens)}, [("▁", "a")], byte_fallback=True)
    model.unk_token = "<unk>"
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "▁")
    found = trim_tokenizer(backend, [backend.token_to_id("a")], [0])
    for text in ("é", "\n", " b"):
        assert found.backend.encode(text).tokens == backend.encode(text).tokens


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2", "llama"])
def test_logits_of_kept_tokens_are_unchanged(name: str) -> None:
    model, kept = random_model(name, vocab_size=100).eval(), [0, 1, 2, 7, 30, 31, 99]
    with torch.no_grad():
        before = model(input_ids=torch.tensor([[2, 30, 99, 7]])).logits
        keep_rows(model, kept)
        after = model(input_ids=torch.tensor([[2, 4, 6, 3]])).logits
    assert after.shape[-1] == len(kept)
    assert torch.allclose(after, before[..., kept], atol=1e-6)


def test_settings_name_special_tokens_by_their_new_ids() -> None:
    settings = {"vocab_size": 100, "pad_token_id": 5, "eos_token_id": [9, 7], "bos_token_id": None, "layers": 9}
    found = Trimmed(wordpiece(), [5, 7, 9])
    assert with_new_ids(settings, found) == {
        **settings,
        "vocab_size": 3,
        "pad_token_id": 0,
        "eos_token_id": [2, 1],
    }
    with pytest.raises(ModelError, match=r"cannot be trimmed: mask_token_id in config\.json is 6"):
        with_new_ids({"mask_token_id": 6}, found)


def test_a_tokenizer_of_whole_words_cannot_be_trimmed() -> None:
    with pytest.raises(ModelError, match="of type WordLevel cannot be trimmed"):
        trim_tokenizer(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), [0], [])
