"""Measures our tokenizing speed on one thread relative to the library's `encode_batch_fast`, for three tokenizers.

Our tokenizer and the library alternate, batch by batch in one process, on the same texts, and their ids are compared.
CPU time is measured, since both use one thread. The WordPiece tokenizer is the shared model's, if --models is given.
Byte-level BPE (50,000 tokens) and Unigram (32,000) are trained on some of the texts. Our tokenizer finds out once per
process which shortcuts a tokenizer allows. This happens before the measurement, and the details show its time.
"""

import os
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Options, Result, apart, main
from benchmarks.corpora import some_texts
from benchmarks.rounds import Ratio, Watch
from benchmarks.texts import SMALL

TARGETS = {"wordpiece": (">=", 5.0), "bpe": (">=", 4.0), "unigram": (">=", 4.0), "ids_equal": (">=", 1.0)}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TRAINED_ON = 10_000_000
"""Number of characters of text for training a tokenizer."""


class Measured(NamedTuple):
    """Times and token ids of one family of tokenizers."""

    library_each: tuple[float, ...]
    """CPU time of the library for each batch of texts [s]."""
    ours_each: tuple[float, ...]
    found_out_s: float
    equal: bool
    pieces: int


def measure(options: Options) -> Result:
    """Measures each family in a separate process, one after another."""
    megabytes = 12 if options.quick else 200
    result, equal = Result({}, [("text", f"{megabytes} MB")]), True
    for family in ("wordpiece", "bpe", "unigram"):
        watch = Watch()
        found = apart(measured, family, megabytes, options.data, options.models)
        result.compare(family, Ratio.of(zip(found.library_each, found.ours_each, strict=True), watch.stop()))
        equal = equal and found.equal
        rates = f"{megabytes / sum(found.ours_each):.1f} against {megabytes / sum(found.library_each):.2f} MB/s"
        result.details.append(
            (family, f"{rates}, {found.found_out_s:.1f} s to find out, {found.pieces:,} pieces remembered")
        )
    result.figures["ids_equal"] = float(equal)
    return result


def measured(family: str, megabytes: float, data: Path | None, models: Path | None) -> Measured:
    """Measures the CPU times of our tokenizer and of the library for one family."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from adapt.model.tokenize.piece_tokenizer import IDS
    from adapt.model.tokenize.text_tokenizer import QuickTokenizer

    texts = some_texts(megabytes, data)
    backend = backend_of(family, texts, models)
    quick = QuickTokenizer(backend, worth=0)
    began = time.process_time()
    quick(texts[:100])
    found_out, equal = time.process_time() - began, True
    library: list[float] = []
    ours: list[float] = []
    for batch in batches_of(texts):
        began = time.process_time()
        ids = [each.ids for part in parts_of(batch) for each in backend.encode_batch_fast(part)]
        between = time.process_time()
        found = quick(batch).lists(IDS)
        library.append(between - began)
        ours.append(time.process_time() - between)
        equal = equal and list(map(len, ids)) == list(map(len, found))
        equal = equal and np.array_equal(np.concatenate(found), np.fromiter(chain.from_iterable(ids), np.uint32))
    pieces = len(quick._pieces.table) if quick._pieces else 0
    return Measured(tuple(library), tuple(ours), found_out, equal, pieces)


def batches_of(texts: list[str], characters: int = 4_000_000) -> Iterator[list[str]]:
    """Yields batches of texts of the size that the stage `prepare` uses."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def parts_of(batch: list[str]) -> Iterator[list[str]]:
    """Splits a batch into lists of a thousand texts.

    With more texts per call, the library's data would exceed the caches.
    """
    yield from (batch[start : start + 1000] for start in range(0, len(batch), 1000))


def backend_of(family: str, texts: list[str], models: Path | None) -> Any:
    """Makes a tokenizer that adds special tokens, but does not recognize special tokens in a text."""
    from tokenizers import Tokenizer

    if family == "wordpiece" and models:
        backend = Tokenizer.from_file(str(models / SMALL / "tokenizer.json"))
    elif family == "wordpiece":
        from benchmarks.texts import _own_tokenizer

        backend = _own_tokenizer().backend_tokenizer
    else:
        backend = trained(family, texts[:: 1 + sum(map(len, texts)) // TRAINED_ON])
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def trained(family: str, texts: list[str]) -> Any:
    """Trains a byte-level BPE tokenizer like RoBERTa's, or a Unigram tokenizer like XLM-R's."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    common: dict[str, Any] = {"special_tokens": SPECIAL, "show_progress": False}
    if family == "bpe":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=50_000, initial_alphabet=alphabet, **common)
    else:
        backend = Tokenizer(models.Unigram())
        backend.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex(" {2,}"), " ")]
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=32_000, unk_token="<unk>", **common)
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=family == "bpe")
    return backend


if __name__ == "__main__":
    main("tokenize", TARGETS, measure)
