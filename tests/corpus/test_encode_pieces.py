"""Tests that texts tokenized in pieces give the same shards, byte for byte, as the `tokenizers` library."""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tokenizers import Tokenizer
from transformers import BertConfig

from adapt.config import ObjectiveConfig
from adapt.corpus import encode_chunks
from adapt.corpus.corpora import Form
from adapt.corpus.encode_chunks import Encode, Marker
from adapt.corpus.entities import Span, Tagged
from adapt.corpus.heldout import key_of
from adapt.corpus.prepare_corpus import chunk_row
from adapt.corpus.token_shards import token_schema
from adapt.model.locate import Pretrained
from adapt.model.tokenize.text_tokenizer import QuickTokenizer
from adapt.model.tokenizer import load_text_tokenizer
from adapt.support.schema import BYTES, KEYS, TOKENS
from tests.model.tokenize.adversaries import adversaries
from tests.objective.rows import wrapped
from tests.samples import sentences
from tests.tokenizers import FAMILIES

TEXTS = [text for text in [*sentences(80, seed=6), *adversaries(120, seed=6)] if "\x00" not in text]
ENTITIES: list[list[Span]] = [[(0, 3), (2, 9), (12, 14)] if number % 2 else [] for number in range(len(TEXTS))]
KINDS = ("token", "whole_word", "entity", "causal")


@pytest.fixture(scope="module", autouse=True)
def _at_once() -> Iterator[None]:
    """Makes the tokenizer split even the first text into pieces.

    Normally, the tokenizer only starts to split texts after it has tokenized a large amount of unsplit text.
    """
    encode_chunks.piece_tokenizer.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_chunks, "QuickTokenizer", partial(QuickTokenizer, worth=0))
        yield
    encode_chunks.piece_tokenizer.cache_clear()


@pytest.fixture(scope="module", params=FAMILIES)
def pretrained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = wrapped(Tokenizer.from_str(FAMILIES[request.param]().to_str()))
    tokenizer.save_pretrained(folder)
    BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    return Pretrained(folder, folder)


def by_the_library(pretrained: Pretrained, form: Form, path: Path) -> None:
    """Writes the expected shard, from the token ids that the `tokenizers` library returns for whole texts."""
    tokenizer = load_text_tokenizer(pretrained)
    backend = tokenizer.backend_tokenizer
    encodings, marker = backend.encode_batch(TEXTS), Marker(backend)
    documents = [list(encoding.ids) for encoding in encodings]
    if form.ends:
        documents = [
            ids if ids[-1:] == [tokenizer.eos_token_id] else [*ids, tokenizer.eos_token_id] for ids in documents
        ]
    marks = [marker.marks(*each) for each in zip(TEXTS, encodings, ENTITIES, strict=True)]
    schema = token_schema(len(tokenizer), form.marks)
    columns = [pa.array(documents, schema.field(TOKENS).type)]
    columns += [pa.array([each[name].tolist() for each in marks], schema.field(name).type) for name in form.marks]
    columns += [pa.array([key_of(text) for text in TEXTS], pa.uint64())]
    columns += [pa.array([len(text.encode()) for text in TEXTS], pa.uint64())]
    schema = schema.append(pa.field(KEYS, pa.uint64())).append(pa.field(BYTES, pa.uint64()))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_shards_equal_those_of_the_library(pretrained: Pretrained, kind: str, tmp_path: Path) -> None:
    options = {"entity_field": "names"} if kind == "entity" else {}
    form = Form.of(ObjectiveConfig(kind=kind, **options))  # type: ignore[arg-type]
    texts = [Tagged.of(text, spans) for text, spans in zip(TEXTS, ENTITIES, strict=True)]
    for number in range(2):  # in the second round, the tokens of all pieces come from the cache
        Encode(pretrained, tmp_path, 0.0, form)(chunk_row(0, number, texts, None))
    by_the_library(pretrained, form, tmp_path / "library.arrow")
    shards = sorted(tmp_path.glob("train-*.arrow"))
    assert len(shards) == 2
    assert {digest(shard) for shard in shards} == {digest(tmp_path / "library.arrow")}


def test_the_count_shows_whether_the_library_tokenized_whole_texts(pretrained: Pretrained, tmp_path: Path) -> None:
    _, _, counts = Encode(pretrained, tmp_path, 0.0).tokens(chunk_row(0, 0, TEXTS, None).to_pylist()[0])
    assert bool(counts["refused"]) is ("wordless" in str(pretrained.model))
