"""Tests, without Ray, that the tokenizing task writes the right shards for each objective."""

import json
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from adapt.config import ObjectiveConfig
from adapt.corpus.corpora import Form
from adapt.corpus.encode_chunks import Encode, Marker, end_documents, sentences_of
from adapt.corpus.entities import Span, Tagged, Tagger
from adapt.corpus.heldout import keys_of
from adapt.corpus.prepare_corpus import chunk_row
from adapt.corpus.token_shards import TokenStream
from adapt.model.locate import Pretrained
from adapt.model.tokenize.piece_tokenizer import Ragged
from adapt.support.schema import ENTITIES, HELDOUT_GLOB, SHARD_GLOB, UNIT_STARTS, WORD_STARTS
from tests.objective.rows import wrapped
from tests.samples import WORDS, sentences
from tests.tokenizers import FAMILIES, byte_level, roberta

TEXTS = [f"{text} jxfd" for text in sentences(60, seed=4)]


@pytest.fixture
def pretrained(tiny_bert: Path) -> Pretrained:
    return Pretrained(tiny_bert, tiny_bert)


def written(
    pretrained: Pretrained, folder: Path, form: Form, entities: list[list[Span]] | None = None
) -> tuple[TokenStream, TokenStream, dict[str, Any]]:
    texts = [Tagged.of(text, spans) for text, spans in zip(TEXTS, entities, strict=True)] if entities else TEXTS
    folder.mkdir(exist_ok=True)
    counts = json.loads(Encode(pretrained, folder, 0.2, form)(chunk_row(0, 0, texts, None))["counts"][0])
    streams = [TokenStream.open(folder, pattern) for pattern in (SHARD_GLOB, HELDOUT_GLOB)]
    assert min(stream.documents for stream in streams) > 3
    return (*streams, counts)


def documents(*streams: TokenStream, column: str = "tokens") -> list[list[int]]:
    return [stream.document(i, column).tolist() for stream in streams for i in range(stream.documents)]


def test_shards_of_plain_documents_have_only_tokens(tmp_path: Path, pretrained: Pretrained) -> None:
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
        assert starts.count(False) >= 3  # the last word of each text has at least four tokens


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
    """A tagger that returns the first two words of each text as one entity."""

    def entities(self, text: str) -> list[Span]:
        return [(0, len(" ".join(text.split()[:2])))]


def causal(folder: Path, adds_end: bool) -> Pretrained:
    tokenizer = wrapped(roberta() if adds_end else byte_level())
    if not adds_end:
        tokenizer.backend_tokenizer.post_processor = None
        tokenizer.unk_token = tokenizer.eos_token  # GPT-2's tokenizer also uses its end token as the unknown token
    config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=len(tokenizer), pad_token_id=None)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Pretrained(folder, folder)


@pytest.mark.parametrize("adds_end", [False, True])
def test_causal_documents_end_with_one_end_token(tmp_path: Path, adds_end: bool) -> None:
    pretrained = causal(tmp_path / "model", adds_end)
    train, heldout, counts = written(pretrained, tmp_path / "out", Form.of(ObjectiveConfig(kind="causal")))
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    ends = [tokens.count(tokenizer.eos_token_id) for tokens in documents(train, heldout)]
    assert ends == [1] * len(TEXTS)
    assert all(tokens[-1] == tokenizer.eos_token_id for tokens in documents(train, heldout))
    assert counts["train_tokens"] == train.tokens
    assert counts.get("unknown_tokens", 0) == 0  # GPT-2's end token, which is also the unknown token, is not counted


def test_names_of_special_tokens_in_a_document_are_read_as_text(tmp_path: Path, pretrained: Pretrained) -> None:
    row = chunk_row(0, 0, ["a [MASK] model", "the data [SEP][PAD] [UNK] of"], None)
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    found, _, _ = Encode(pretrained, tmp_path, 0.0).tokens(row.to_pylist()[0])
    special = {tokenizer.mask_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    for ids in found.lists("tokens"):
        assert not special & set(ids[:-1])
        assert ids[-1] == tokenizer.sep_token_id
        assert len(ids) > 6


def test_a_causal_document_that_ends_with_the_name_of_the_end_token_gets_one(tmp_path: Path) -> None:
    pretrained = causal(tmp_path / "model", adds_end=False)
    end = AutoTokenizer.from_pretrained(pretrained.model).eos_token_id
    row = chunk_row(0, 0, ["html ends with </s>"], None).to_pylist()[0]
    (ids,) = Encode(pretrained, tmp_path, 0.0, Form.of(ObjectiveConfig(kind="causal"))).tokens(row)[0].lists("tokens")
    assert (ids[-1], (ids == end).sum()) == (end, 1)


@given(st.lists(st.lists(st.sampled_from([7, 8, 9]), max_size=3), max_size=6))
def test_documents_without_an_end_token_get_one(documents: list[list[int]]) -> None:
    bounds = np.array([0, *accumulate(map(len, documents))])
    found = end_documents(Ragged(bounds, {"tokens": np.array([*chain(*documents)], np.uint32)}), 9)
    expected = [ids if ids[-1:] == [9] else [*ids, 9] for ids in documents]
    assert [ids.tolist() for ids in found.lists("tokens")] == expected


def test_identity_of_a_form_has_only_fields_that_differ_from_the_default() -> None:
    assert Form.of(ObjectiveConfig()).identity() == {}
    assert Form.of(ObjectiveConfig(tagger="a:b", entity_field="names")).identity() == {}
    assert Form.of(ObjectiveConfig(kind="causal")).identity() == {"ends": True}
    word, span = (Form.of(ObjectiveConfig(kind=kind)).identity() for kind in ("whole_word", "span"))
    assert word == span == {"marks": (WORD_STARTS,)}
    entity = Form.of(ObjectiveConfig(kind="entity", tagger="a:b")).identity()
    assert entity == {"marks": (UNIT_STARTS, ENTITIES), "tagger": "a:b"}


families = pytest.mark.parametrize("family", FAMILIES)
words_of_letters = st.one_of(st.sampled_from(WORDS), st.text("abcdefgéüß", min_size=1, max_size=12))


def encoded(family: str, text: str) -> tuple[Marker, Encoding]:
    tokenizer = FAMILIES[family]()
    return Marker(tokenizer), tokenizer.encode(text)


def pieces(text: str, encoding: Encoding, starts: np.ndarray) -> list[str]:
    """Splits the tokens into units at `starts`, and returns the part of the text that each unit covers."""
    units: list[list[Span]] = []
    for (begin, end), start in zip(encoding.offsets, starts, strict=True):
        if start:
            units.append([])
        units[-1].append((begin, end))
    return [text[unit[0][0] : max(end for _, end in unit)].strip() for unit in units]


def words_in(family: str, text: str) -> list[str]:
    """Returns the words of a text, without special tokens."""
    marker, encoding = encoded(family, text)
    starts = marker.word_starts(text, encoding)
    special = np.array(encoding.special_tokens_mask, bool)
    assert starts[special].all()
    assert starts[0]
    return [word for word in pieces(text, encoding, starts) if word]


@families
@settings(max_examples=60)
@given(words=st.lists(words_of_letters, min_size=1, max_size=12))
def test_words_between_blanks_include_all_their_pieces(family: str, words: list[str]) -> None:
    assert words_in(family, " ".join(words)) == words


@families
def test_tokenizers_split_the_sample_words_into_several_pieces(family: str) -> None:
    _, encoding = encoded(family, "gradient abcabcabc")
    assert len(encoding.ids) - sum(encoding.special_tokens_mask) > 3  # the text has more tokens than words


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("wordpiece", ["the", "data", "don", "'", "t", "(", "3", ".", "14", ")"]),
        ("byte-level", ["the", "data", "don", "'t", "(", "3", ".", "14", ")"]),
        ("roberta", ["the", "data", "don", "'t", "(", "3", ".", "14", ")"]),
        ("unigram", ["the", "data", "don't", "(3.14)"]),
        ("wordless", ["the", "data", "don't", "(3.14)"]),
    ],
)
def test_several_blanks_and_punctuation(family: str, expected: list[str]) -> None:
    assert words_in(family, "the   data\n\tdon't  (3.14)") == expected


@families
def test_scripts_without_blanks_are_split_at_characters(family: str) -> None:
    """Each Chinese character counts as a word. Otherwise a whole Chinese sentence would be one word."""
    assert words_in(family, "the 日本語 data") == ["the", "日", "本", "語", "data"]


@families
def test_a_special_token_in_the_text_is_a_word(family: str) -> None:
    marker, encoding = encoded(family, "abc<mask>def ghi")
    starts, place = marker.word_starts("abc<mask>def ghi", encoding), encoding.tokens.index("<mask>")
    assert starts[place]
    assert starts[place + 1]


@families
def test_an_empty_text(family: str) -> None:
    marker, encoding = encoded(family, "")
    assert all(column.all() == (name != ENTITIES) for name, column in marker.marks("", encoding, []).items())
    assert {len(column) for column in marker.marks("", encoding, []).values()} == {len(encoding.ids)}


@families
@settings(max_examples=60)
@given(st.data())
def test_units_are_entities_and_the_words_between_them(family: str, data: st.DataObject) -> None:
    """If entities consist of whole words, each entity is one unit of masking, and so is each remaining word."""
    words = data.draw(st.lists(words_of_letters, min_size=1, max_size=12))
    ends = sorted(data.draw(st.sets(st.integers(0, len(words)), max_size=6)))
    runs = [(first, last) for first, last in zip(ends[::2], ends[1::2], strict=False)]
    text = " ".join(words)
    begins = np.cumsum([0, *(len(word) + 1 for word in words)])
    entities = [(int(begins[first]), int(begins[last]) - 1) for first, last in runs]
    marker, encoding = encoded(family, text)
    marks = marker.marks(text, encoding, data.draw(st.permutations(entities)))

    expected: dict[int, str] = {first: " ".join(words[first:last]) for first, last in runs}
    inside = {word for first, last in runs for word in range(first, last)}
    expected |= {number: word for number, word in enumerate(words) if number not in inside}
    units = [unit for unit in pieces(text, encoding, marks[UNIT_STARTS]) if unit]
    assert units == [unit for _, unit in sorted(expected.items())]
    assert not (marks[ENTITIES] & np.array(encoding.special_tokens_mask, bool)).any()
    for (begin, end), marked in zip(encoding.offsets, marks[ENTITIES], strict=True):
        if begin < end:
            assert marked == any(first < end and last > begin for first, last in entities)
    assert np.array_equal(marks[WORD_STARTS], marker.word_starts(text, encoding))


def test_an_entity_that_ends_inside_a_word_splits_it() -> None:
    text = "IL-2-mediated"
    marker, encoding = encoded("wordless", text)
    marks = marker.marks(text, encoding, [(0, 4)])
    assert pieces(text, encoding, marks[UNIT_STARTS])[1:] == ["IL-2", "-mediated"]


def test_adjacent_entities_are_two_units_and_the_first_of_overlapping_ones_counts() -> None:
    text = "abcdefghij"
    marker, encoding = encoded("byte-level", text)
    marks = marker.marks(text, encoding, [(2, 4), (4, 6), (5, 8), (2, 3)])
    assert pieces(text, encoding, marks[UNIT_STARTS])[1:-1] == ["ab", "cd", "ef", "ghij"]
    assert "".join(text[begin:end] for begin, end in np.array(encoding.offsets)[marks[ENTITIES]]) == "cdef"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'It works! Does it? (Yes.) "Good." Then 3 of 4.',
            ["It works!", "Does it?", "(Yes.)", '"Good."', "Then 3 of 4."],
        ),
        (
            "Smith et al. (2010) say p < 0.05. In Fig. 3 J. Doe agrees.",
            ["Smith et al. (2010) say p < 0.05.", "In Fig. 3 J. Doe agrees."],
        ),
        ("A title\n\na body. small letters go on.", ["A title", "a body. small letters go on."]),
        ("One. ... Two.", ["One. ...", "Two."]),
        ("Ünal ging. Älter ist er.", ["Ünal ging.", "Älter ist er."]),
        ("好。再见。", ["好。", "再见。"]),
        ("no end", ["no end"]),
        ("", [""]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences_of(text) == expected


def test_each_sentence_is_a_document_with_the_key_of_its_text(tiny_bert: Path, tmp_path: Path) -> None:
    """All sentences of a text are held out together. They count as trained on if the undivided text was trained on."""
    texts = ["The model. A loss! A layer.", "Text without an end", "The text. A word."]
    pretrained = Pretrained(tiny_bert, tiny_bert)
    form = Form.of(ObjectiveConfig(kind="tsdae"), sentences=True)
    row = chunk_row(0, 0, texts, None)
    documents, keys, _ = Encode(pretrained, tmp_path, 0.0, form).tokens(row.to_pylist()[0])
    parts = [sentence for text in texts for sentence in sentences_of(text)]
    alone, _, _ = Encode(pretrained, tmp_path, 0.0).tokens(chunk_row(0, 0, parts, None).to_pylist()[0])
    assert [ids.tolist() for ids in documents.lists("tokens")] == [ids.tolist() for ids in alone.lists("tokens")]
    assert keys.tolist() == keys_of(texts)[[0, 0, 0, 1, 2, 2]].tolist()
    counts = json.loads(Encode(pretrained, tmp_path, 0.0, form)(row)["counts"][0])
    assert counts["train_documents"] == 6
    assert form.identity() == {"marks": ("word_starts",), "sentences": True}
