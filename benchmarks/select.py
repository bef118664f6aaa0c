"""Measures the cost of selecting documents, relative to reading and cleaning the pool and to the DSIR authors' package.

Each measurement is the CPU time of a new process on one core. DSIR and the classifier pass over the pool twice, so
they are compared with reading and cleaning the pool twice. The authors' package is measured if it is installed
(`benchmarks/peer_dsir.py`): `dsir_ratio` is our documents per second, divided by the package's. `dsir_agreement` is the
share of our selected documents that the package selects too. For this figure, selection has no noise, the target has
words in each bucket, and both sides get the same words in the same buckets.
"""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Options, Result, apart, main, peak_bytes, workplace
from benchmarks.corpora import some_texts, write_jsonl
from benchmarks.peer_dsir import FEW_BUCKETS, IS_INSTALLED, package_seconds, package_weights
from benchmarks.rounds import alternate

TARGETS = {
    "dsir_ratio": (">=", 3.0),
    "dsir_agreement": (">=", 0.99),
    "classifier_mb_s": (">=", 3.0),
    "dsir_over_reading": ("<=", 2.0),
    "classifier_over_reading": ("<=", 2.0),
    "peak_growth": ("<=", 1.15),
}
PASSES = 2
READING = "reading and cleaning"
BUDGET, TARGET = 500, 1000
"""Number of documents to select, and number of target texts. The target texts are the first texts of the pool."""


@dataclass(frozen=True)
class Cost:
    """Time and memory of selecting from a pool, or of reading the pool."""

    seconds: float
    documents: int
    peak: int
    """Peak memory of the process [bytes]."""


def measure(options: Options) -> Result:
    """Selects from a pool, and from a pool that is ten times smaller."""
    megabytes = 20 if options.quick else 200
    with workplace() as folder:
        small = write_jsonl(folder / "small.jsonl", megabytes // 10, options.data)
        large = write_jsonl(folder / "large.jsonl", megabytes, options.data)
        size = large.stat().st_size / 1e6
        kinds = ("random", "dsir", "classifier")
        found = alternate({kind or READING: partial(apart, cost_of, large, kind) for kind in ("", *kinds)})
        costs = {kind: min(found.found[kind], key=_seconds) for kind in kinds}
        growth = costs["dsir"].peak / apart(cost_of, small, "dsir").peak
        result = _beside_the_package(folder, 3_000 if options.quick else 100_000, options.data)
    for kind in kinds:
        seconds = found.middle(kind, _seconds)
        result.details.append((kind, f"{costs[kind].documents / seconds:,.0f} documents/s, {size / seconds:.1f} MB/s"))
    result.details.append((READING, f"{size / found.middle(READING, _seconds):.1f} MB/s"))
    for kind in ("dsir", "classifier"):
        ratio = found.ratio(kind, READING, _seconds)
        result.compare(f"{kind}_over_reading", replace(ratio, rounds=tuple(each / PASSES for each in ratio.rounds)))
    result.figures |= {"classifier_mb_s": size / found.middle("classifier", _seconds), "peak_growth": growth}
    return result


def _seconds(cost: Any) -> float:
    return float(cost.seconds if isinstance(cost, Cost) else cost)


def _beside_the_package(folder: Path, documents: int, data: Path | None) -> Result:
    """Compares speed and selected documents with the authors' package. Without the package, returns no figures."""
    if not IS_INSTALLED:
        return Result({}, [("data-selection", "not installed: see benchmarks/peer_dsir.py")])
    texts = list(itertools.islice(itertools.cycle(some_texts(documents / 500, data)), documents))
    pool, target = _lines(folder / "pool.jsonl", texts), _lines(folder / "target.jsonl", texts[:TARGET])
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: apart(cost_of, pool, "dsir"),
        "theirs": lambda: apart(package_seconds, pool, target, BUDGET),
    }
    found = alternate(sides)
    rates = " and ".join(f"{documents / found.middle(side, _seconds):,.0f}" for side in sides)
    result = Result({"dsir_agreement": apart(agreement, folder, texts)})
    result.compare("dsir_ratio", found.ratio("theirs", "ours", _seconds))
    result.details.append(("ours, and the package", f"{rates} documents/s"))
    return result


def agreement(folder: Path, texts: list[str]) -> float:
    """Returns the share of our selected documents that the authors' package selects too.

    The number of buckets is small, so that the target has words in each bucket.
    """
    import numpy as np

    from adapt.corpus.shingles import normalised, words
    from adapt.select.grams import gram_chunks, gram_counts
    from adapt.select.ngram_selections import log_ratios

    plain = list(dict.fromkeys(" ".join(words(normalised(text))) for text in texts))
    like = plain[::2]  # every second text of the pool
    target, pool = gram_counts(like, 2, FEW_BUCKETS), gram_counts(plain, 2, FEW_BUCKETS)
    assert target.all(), "give more text: of buckets that the target lacks the definitions differ"
    ratios = log_ratios(target, pool, smoothing=1e-12)
    ours = np.concatenate([some.sums(ratios) for some in gram_chunks(plain, 2, FEW_BUCKETS)])
    theirs = package_weights(_lines(folder / "plain.jsonl", plain), _lines(folder / "like.jsonl", like))
    chosen = [set(np.argsort(-weights, kind="stable")[: len(plain) // 10].tolist()) for weights in (ours, theirs)]
    return len(chosen[0] & chosen[1]) / len(chosen[0])


def cost_of(pool_file: Path, kind: str) -> Cost:
    """Measures a selection from a pool in this process. If `kind` is empty, only reads and cleans the pool."""
    from adapt.config import Config, CorpusConfig, SelectConfig
    from adapt.corpus.files.manifest import build_manifest
    from adapt.corpus.minhash import DuplicateRule
    from adapt.runner.digest import Digests
    from adapt.select.choose import Budget, choose
    from adapt.select.pool import Pool
    from adapt.select.selection import Given
    from adapt.select.table import steps_of

    corpus = CorpusConfig(paths=str(pool_file))
    pool = Pool(build_manifest(corpus, Digests()), corpus)
    target = [str(text) for text in itertools.islice(pool, TARGET)]
    steps = steps_of(Config(select=SelectConfig(kind=kind))) if kind else ()
    start = time.process_time()
    if steps:
        given, selections = Given(pool, target, Config()), [step.selection for step in steps]
        rule = DuplicateRule(near=True)
        choose(selections, given, Budget(documents=BUDGET), 1.0, rule, lambda texts: [1] * len(texts))
    else:
        for _ in pool:
            pass
    return Cost(time.process_time() - start, pool.tally.kept, peak_bytes())


def _lines(file: Path, texts: list[str]) -> Path:
    """Writes texts to a file."""
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


if __name__ == "__main__":
    main("select", TARGETS, measure)
