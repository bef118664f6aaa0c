"""What the tokenizing task writes for each objective, without Ray."""

from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from adapt.config import ObjectiveConfig
from adapt.corpus.entities import Span, Tagged, Tagger
from adapt.corpus.shards.encode import Encode, _ended
from adapt.corpus.shards.form import Form
from adapt.corpus.shards.prepare import _row
from adapt.corpus.shards.tokens import TokenStream
from adapt.model.locate import Pretrained
from adapt.model.tokenize.ragged import Ragged
from adapt.schema import ENTITIES, HELDOUT_GLOB, SHARD_GLOB, UNIT_STARTS, WORD_STARTS
from tests.objective.rows import wrapped
from tests.samples import sentences
from tests.tokenizers import byte_level, roberta

TEXTS = [f"{text} jxfd" for text in sentences(60, seed=4)]


@pytest.fixture
def pretrained(tiny_bert: Path) -> Pretrained:
    return Pretrained(tiny_bert, tiny_bert)


def written(
    pretrained: Pretrained, folder: Path, form: Form, entities: list[list[Span]] | None = None
) -> tuple[TokenStream, TokenStream, dict[str, Any]]:
    texts = [Tagged.of(text, spans) for text, spans in zip(TEXTS, entities, strict=True)] if entities else TEXTS
    folder.mkdir(exist_ok=True)
    counts = Encode(pretrained, folder, 0.2, form)(_row(0, 0, texts, None)).counts
    streams = [TokenStream.open(folder, pattern) for pattern in (SHARD_GLOB, HELDOUT_GLOB)]
    assert min(stream.documents for stream in streams) > 3
    return (*streams, counts)


def documents(*streams: TokenStream, column: str = "tokens") -> list[list[int]]:
    return [stream.document(i, column).tolist() for stream in streams for i in range(stream.documents)]


def test_plain_documents_have_tokens_alone(tmp_path: Path, pretrained: Pretrained) -> None:
    train, heldout, _ = written(pretrained, tmp_path, Form.of(ObjectiveConfig()))
    with pytest.raises(KeyError):
        train.document(0, WORD_STARTS)
    assert len(documents(train, heldout)) == len(TEXTS)


@pytest.mark.parametrize("kind", ["whole_word", "span"])
def test_word_starts_are_those_of_transformers(tmp_path: Path, pretrained: Pretrained, kind: str) -> None:
    train, heldout, _ = written(pretrained, tmp_path / "marked", Form.of(ObjectiveConfig(kind=kind)))
    plain = written(pretrained, tmp_path / "plain", Form())[:2]
    assert documents(train, heldout) == documents(*plain)
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    expected = {}
    for text in TEXTS:
        words = tokenizer(text).word_ids()
        starts = [word is None or word != before for word, before in zip(words, [None, *words], strict=False)]
        expected[tuple(tokenizer(text)["input_ids"])] = starts
    for tokens, starts in zip(documents(train, heldout), documents(train, heldout, column=WORD_STARTS), strict=True):
        assert starts == expected[tuple(tokens)]
        assert starts.count(False) >= 3  # the last word


@pytest.mark.parametrize("tagger", [None, f"{__name__}:FirstTwoWords"])
def test_entities_from_the_field_and_from_a_tagger(tmp_path: Path, pretrained: Pretrained, tagger: str | None) -> None:
    source = {"tagger": tagger} if tagger else {"entity_field": "names"}
    form = Form.of(ObjectiveConfig(kind="entity", **source))
    spans = None if tagger else [FirstTwoWords().entities(text) for text in TEXTS]
    train, heldout, _ = written(pretrained, tmp_path, form, spans)
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    for tokens, marks, starts in zip(
        *(documents(train, heldout, column=column) for column in ("tokens", ENTITIES, UNIT_STARTS)), strict=True
    ):
        inside = [token for token, marked in zip(tokens, marks, strict=True) if marked]
        first_two = tokenizer.decode(tokens, skip_special_tokens=True).split()[:2]
        assert tokenizer.decode(inside).split() == first_two
        assert marks[0] is marks[-1] is False
        assert starts[:2] == [True, True]
        assert not any(starts[2 : 1 + len(inside)])
        assert starts[1 + len(inside)]


class FirstTwoWords(Tagger):
    """The first two words."""

    def entities(self, text: str) -> list[Span]:
        return [(0, len(" ".join(text.split()[:2])))]


def causal(folder: Path, adds_end: bool) -> Pretrained:
    tokenizer = wrapped(roberta() if adds_end else byte_level())
    if not adds_end:
        tokenizer.backend_tokenizer.post_processor = None
        tokenizer.unk_token = tokenizer.eos_token  # as GPT-2's is
    config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=len(tokenizer), pad_token_id=None)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Pretrained(folder, folder)


@pytest.mark.parametrize("adds_end", [False, True])
def test_causal_documents_end_once(tmp_path: Path, adds_end: bool) -> None:
    pretrained = causal(tmp_path / "model", adds_end)
    train, heldout, counts = written(pretrained, tmp_path / "out", Form.of(ObjectiveConfig(kind="causal")))
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    ends = [tokens.count(tokenizer.eos_token_id) for tokens in documents(train, heldout)]
    assert ends == [1] * len(TEXTS)
    assert all(tokens[-1] == tokenizer.eos_token_id for tokens in documents(train, heldout))
    assert counts["train_tokens"] == train.tokens
    assert counts.get("unknown_tokens", 0) == 0  # the end is none


def test_special_tokens_written_in_a_document_are_text(tmp_path: Path, pretrained: Pretrained) -> None:
    row = _row(0, 0, ["a [MASK] model", "the data [SEP][PAD] [UNK] of"], None)
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    found, _, _ = Encode(pretrained, tmp_path, 0.0).tokens(row.to_pylist()[0])
    special = {tokenizer.mask_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    for ids in found.lists("tokens"):
        assert not special & set(ids[:-1])
        assert ids[-1] == tokenizer.sep_token_id
        assert len(ids) > 6


def test_a_causal_document_that_ends_with_the_name_of_the_end_is_ended(tmp_path: Path) -> None:
    pretrained = causal(tmp_path / "model", adds_end=False)
    end = AutoTokenizer.from_pretrained(pretrained.model).eos_token_id
    row = _row(0, 0, ["html ends with </s>"], None).to_pylist()[0]
    (ids,) = Encode(pretrained, tmp_path, 0.0, Form.of(ObjectiveConfig(kind="causal"))).tokens(row)[0].lists("tokens")
    assert (ids[-1], (ids == end).sum()) == (end, 1)


@given(st.lists(st.lists(st.sampled_from([7, 8, 9]), max_size=3), max_size=6))
def test_every_document_that_has_no_end_gets_one(documents: list[list[int]]) -> None:
    bounds = np.array([0, *accumulate(map(len, documents))])
    found = _ended(Ragged(bounds, {"tokens": np.array([*chain(*documents)], np.uint32)}), 9)
    expected = [ids if ids[-1:] == [9] else [*ids, 9] for ids in documents]
    assert [ids.tolist() for ids in found.lists("tokens")] == expected


def test_only_what_differs_is_part_of_the_identity() -> None:
    assert Form.of(ObjectiveConfig()).identity() == {}
    assert Form.of(ObjectiveConfig(tagger="a:b", entity_field="names")).identity() == {}
    assert Form.of(ObjectiveConfig(kind="causal")).identity() == {"ends": True}
    word, span = (Form.of(ObjectiveConfig(kind=kind)).identity() for kind in ("whole_word", "span"))
    assert word == span == {"marks": (WORD_STARTS,)}
    entity = Form.of(ObjectiveConfig(kind="entity", tagger="a:b")).identity()
    assert entity == {"marks": (UNIT_STARTS, ENTITIES), "tagger": "a:b"}
