"""Tests the measurements on which advice is based: tokens per word, overlap, loss, and statistics of a task."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter
from transformers import AutoModel, AutoTokenizer, DebertaV2Config, DebertaV2ForMaskedLM

from adapt.advise.collect_evidence import look
from adapt.advise.corpus_sample import Sample
from adapt.advise.evidence import Evidence
from adapt.config import Config, EvaluationConfig, TrainingConfig
from adapt.model.locate import Pretrained
from adapt.support.errors import DataError
from adapt.task.prepare_task import Facts, Split
from tests.samples import VOCABULARY, WORDS, sentences

CONFIG = Config(evaluation=EvaluationConfig(sequence_length=64))
KNOWN = WORDS[2:]
"""Words that the tokenizer encodes as one token each."""


def sample(texts: list[str], times: int = 1) -> Sample:
    size = sum(map(len, texts))
    return Sample(texts, len(texts) * times, size * times, times == 1)


@pytest.fixture
def task(tiny_bert: Path, tmp_path: Path) -> Path:
    """Returns a prepared task whose train texts consist of the first 40 words."""
    from adapt.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tiny_bert)
    texts = [" ".join(KNOWN[start : start + 10]) for start in range(0, 40, 5)]
    tokens = [np.array(tokenizer(text)["input_ids"], np.int32) for text in texts]
    segments = [np.zeros(len(each), np.int8) for each in tokens]
    ids = list(map(str, range(8)))
    Split(ids, tokens, segments, [0, 0, 0, 0, 0, 0, 1, 1], [False] * 8).save(tmp_path, "train")
    Split(ids[:3], tokens[:3], segments[:3], [0, 1, 2], [True, True, False]).save(tmp_path, "test")
    Facts("toy", "single_label", ["a", "b", "c"], "macro_f1").save(tmp_path)
    return tmp_path


def test_evidence_of_a_text(tiny_bert: Path) -> None:
    plain = sentences(40, seed=1)
    texts = {"corpus": sample(["and zzzz", "of qqq."], 100), "general": sample(plain)}
    found = look(CONFIG, Pretrained(tiny_bert, tiny_bert), texts, {})
    assert found.corpus
    assert found.general
    # The text has 5 words and marks with 10 tokens: "and", "z ##z ##z ##z", "of", "q ##q ##q" and the full stop.
    assert found.corpus.fertility == pytest.approx(10 / 5)
    assert found.corpus.tokens == (10 + 4) * 100  # each document has two special tokens
    assert (found.corpus.documents, found.corpus.is_exact, found.corpus.sampled) == (200, False, 2)
    assert found.general.fertility < 2
    assert found.general.loss > 0
    assert (found.tasks, found.pool) == ([], None)
    assert found.corpus.extension is None  # only words that occur at least five times can become tokens


def test_savings_of_an_extended_vocabulary(tiny_bert: Path) -> None:
    texts = {"corpus": sample(["hepatitis and the model"] * 5), "general": sample(sentences(10))}
    found = look(CONFIG, Pretrained(tiny_bert, tiny_bert), texts, {})
    assert found.corpus
    assert found.corpus.extension
    assert found.corpus.extension.tokens == 1
    assert found.corpus.extension.length_saved == pytest.approx(
        8 / 14
        # "the" has three tokens and saves fewer tokens than the mean, so only "hepatitis" becomes a token.
    )
    assert found.general
    assert found.general.extension is None


def test_special_tokens_written_in_a_text_are_text(tiny_bert: Path) -> None:
    found = look(CONFIG, Pretrained(tiny_bert, tiny_bert), {"corpus": sample(["[MASK]"] * 20)}, {})
    assert found.corpus
    # The three words and marks have 4 known tokens, "m ##a ##s ##k". Unknown marks such as "[" have no token.
    assert found.corpus.fertility == pytest.approx(4 / 3)


def test_evidence_of_a_task_with_overlaps(tiny_bert: Path, task: Path) -> None:
    texts = {"corpus": sample([" ".join(KNOWN[:45])] * 2), "general": sample([" ".join(KNOWN[45:])] * 2)}
    found = look(CONFIG, Pretrained(tiny_bert, tiny_bert), texts, {"toy": task})
    (toy,) = found.tasks
    assert (toy.name, toy.examples, toy.classes, toy.rarest, toy.test, toy.leaked) == ("toy", 8, 3, 2, 3, 2)
    assert toy.tokens == sum(len(each) for each in Split.load(task, "train").tokens)
    assert toy.fertility == pytest.approx(1.0)
    assert toy.overlap is not None
    assert toy.general_overlap is not None
    assert toy.overlap > 0.7 > 0.3 > toy.general_overlap
    assert found.overlap is not None
    # The evidence does not change when it is stored in a record and read again.
    assert TypeAdapter(Evidence).validate_python(asdict(found)) == found


def test_evidence_of_a_task_without_texts(tiny_bert: Path, task: Path) -> None:
    found = look(CONFIG, Pretrained(tiny_bert, tiny_bert), {}, {"toy": task})
    assert (found.corpus, found.overlap, found.tasks[0].overlap) == (None, None, None)


def test_an_empty_sample_is_refused(tiny_bert: Path) -> None:
    with pytest.raises(DataError, match="the corpus text is empty after cleaning"):
        look(CONFIG, Pretrained(tiny_bert, tiny_bert), {"corpus": Sample([], 0, 0, True)}, {})


def test_padding_is_estimated_for_models_that_take_no_packed_documents(tiny_bert: Path, tmp_path: Path) -> None:
    """Checks the estimate for passes that have two rows of 64 tokens.

    All documents of a pass are padded to the same length, because one pass per length would cost more.
    """
    sizes = {"vocab_size": len(VOCABULARY), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    # convolutions would mix documents that share a row, so the model takes no packed documents
    config = DebertaV2Config(**sizes, conv_kernel_size=3)
    DebertaV2ForMaskedLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    training = TrainingConfig(sequence_length=64, micro_batch=2)
    # each text also has two special tokens
    texts = {"corpus": sample([" ".join(["model"] * count) for count in (28, 8, 38, 46)])}
    found, packed = (
        look(replace(CONFIG, training=training), Pretrained(folder, folder), texts, {})
        for folder in (tmp_path, tiny_bert)
    )
    assert found.corpus
    # documents of 30, 10, 40 and 48 tokens; the third is cut into 24 and 16 at the end of the first row
    assert found.corpus.padding == pytest.approx(1 - 128 / (5 * 48))
    assert packed.corpus
    assert packed.corpus.padding is None


def test_a_model_without_a_head_is_measured_with_a_new_one(tiny_bert: Path, tmp_path: Path) -> None:
    """Checks that measuring a model that lacks a head does not change the model's folder."""
    AutoModel.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    texts = {"corpus": sample(sentences(40, seed=1))}
    found, whole = (look(CONFIG, Pretrained(folder, folder), texts, {}) for folder in (tmp_path, tiny_bert))
    assert (found.has_head, whole.has_head) == (False, True)
    assert found.corpus
    assert found.corpus.loss > 0
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == files
