"""Measures the time to the first batch of a resumed run, early and late in the corpus.

With prepared shards (a large synthetic corpus), `growth` is the time at step 100,000 divided by the time at step 10.
Each time is measured in a process that opens the corpus again. With streamed text (a corpus of many files), the figures
are the time at the middle batch and the time at the last batch, each divided by the time at the first batch. These
ratios must stay near 1 too, because a resumed run reads only one item and one window again.
"""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Options, Result, apart, main, workplace
from benchmarks.rounds import alternate

if TYPE_CHECKING:
    from adapt.corpus.streaming import Online

TARGETS = {"growth": ("<=", 1.2), "growth_streaming": ("<=", 1.5)}
ROWS, LENGTH = 256, 512
SHARDS, SHARD_TOKENS, DOCUMENT = 64, 2**22, 600
FILES, LINES = 40, 4000


def measure(options: Options) -> Result:
    """Measures the time with prepared shards and with streamed text."""
    repetitions = 3 if options.quick else 9
    with workplace() as folder:
        shards = SHARDS // 4 if options.quick else SHARDS
        build_shards(folder, shards)
        at_steps = {str(step): partial(apart, first_prepared, str(folder), step) for step in (10, 1000, 100_000)}
        prepared = alternate(at_steps, repetitions)
        files = FILES // 4 if options.quick else FILES
        places = build_texts(folder / "texts", files)
        at_places = {str(place): partial(apart, first_streamed, folder / "texts", place) for place in (0.0, 0.5, 0.99)}
        streaming = alternate(at_places, repetitions)
    details = [
        *((f"prepared, step {int(step):,}", f"{prepared.middle(step, float) * 1000:.0f} ms") for step in at_steps),
        *(
            (f"streaming, {float(at):.0%} of an epoch", f"{streaming.middle(at, float) * 1000:.0f} ms")
            for at in at_places
        ),
        ("prepared corpus", f"{shards * SHARD_TOKENS / 1e6:.0f} M tokens"),
        ("streamed", f"{places:,} tokens"),
    ]
    result = Result({}, details)
    result.compare("growth", prepared.ratio("100000", "10", float))
    later = [streaming.ratio(place, "0.0", float) for place in at_places]
    result.compare("growth_streaming", max(later, key=lambda ratio: ratio.middle))
    return result


def build_shards(folder: Path, shards: int) -> None:
    """Writes token shards that contain random documents."""
    import numpy as np

    from adapt.corpus.token_shards import write_shard

    draw = np.random.default_rng(0)
    for number in range(shards):
        documents = draw.integers(0, 30_000, (SHARD_TOKENS // DOCUMENT, DOCUMENT), dtype=np.uint16)
        write_shard(folder / f"train-{number:06d}-000000.arrow", list(documents), 30_000)


def build_texts(folder: Path, files: int) -> int:
    """Writes text files, and reads them once to build the index with token counts. Returns the number of tokens."""
    from adapt.corpus.streaming import ItemIndex
    from benchmarks.common import corpus_file

    folder.mkdir()
    text = corpus_file(folder, LINES).read_text()
    (folder / "corpus.jsonl").unlink()
    for number in range(files):
        (folder / f"{number:03d}.jsonl").write_text(text)
    online = _online(folder)
    for _ in online.batches(0, parallel=False):
        pass
    return sum(ItemIndex.open(online.index).tokens)


def first_prepared(folder: str, step: int) -> float:
    """Returns the time from opening the prepared corpus to receiving the batch of a step [s]."""
    from adapt.corpus.shard_batches import Feed

    began = time.perf_counter()
    next(Feed.of(folder, LENGTH, ROWS, 0, step, step + 1).read())
    return time.perf_counter() - began


def first_streamed(folder: Path, place: float) -> float:
    """Returns the time from opening the streamed corpus to its batch after the fraction `place` of an epoch [s].

    The tokenizer is loaded before the time is measured.
    """
    from adapt.corpus.streaming import ItemIndex

    online = _online(folder)
    assert online.encode._tokenizer  # loads it
    tokens = sum(ItemIndex.open(online.index).tokens)
    began = time.perf_counter()
    next(online.batches(int(place * (tokens // LENGTH) / ROWS), parallel=False))
    return time.perf_counter() - began


def _online(folder: Path) -> "Online":
    """Returns options of streaming with a window of half a file, so that reading the file takes most of the time."""
    from adapt.config import CorpusConfig
    from adapt.corpus.corpora import PLAIN
    from adapt.corpus.files.manifest import build_manifest
    from adapt.corpus.streaming import Online
    from adapt.corpus.token_shards import Cut
    from adapt.model.demo_checkpoint import demo_checkpoint
    from adapt.model.locate import Pretrained
    from adapt.runner.digest import Digests

    source, corpus = demo_checkpoint("demo:bert-tiny"), CorpusConfig(paths=str(folder / "*.jsonl"))
    manifest = build_manifest(corpus, Digests(folder / "digests.json"))
    cut = Cut(LENGTH, ROWS, 0, 2**18)
    return Online.of(manifest, corpus, Pretrained(source, source), PLAIN, cut, folder)


if __name__ == "__main__":
    main("resume_time", TARGETS, measure)
