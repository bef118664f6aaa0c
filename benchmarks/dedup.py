"""Measures precision, recall and speed of finding near duplicates among 20,000 documents, compared with datasketch.

The texts are real (from --data, or Python's language reference). Some are copies of other texts with random edits,
which depend on a seed. The ground truth is the exact Jaccard similarity of every pair that shares a shingle.
`precision`: share of dropped documents whose similarity to another document reaches the threshold. `recall`: share of
pairs at or above the threshold whose documents end up in the same cluster.
`ratio_to_datasketch`: our documents per second, divided by datasketch's. Both run in one process and one thread.
"""

import gzip
import json
import os
import random
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adapt.corpus.deduplication import Match, clusters, merged, parts_of, sign_chunk
from adapt.corpus.minhash import DuplicateRule
from adapt.corpus.shingles import normalised, shingles, words
from benchmarks.common import Options, Result, apart, main
from benchmarks.rounds import alternate

TARGETS = {"precision": (">=", 0.95), "recall": (">=", 0.9), "ratio_to_datasketch": (">=", 2.0)}
RULE = DuplicateRule(near=True)
COMMON = 200
"""Shingles that occur in more than this many documents are not used to find pairs. Similar documents also share rarer
shingles."""
CHUNK = 2000
FILE = "corpora/cs_acl_abstracts.jsonl.gz"


def measure(options: Options) -> Result:
    """Finds duplicates with our code and with datasketch, in separate processes, and compares them with the truth."""
    documents = 20_000
    their_documents = documents // 10 if options.quick else documents
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: apart(ours, options.data, documents),
        "theirs": lambda: apart(theirs, options.data, their_documents),
    }
    compared = alternate(sides)
    counts = {"ours": documents, "theirs": their_documents}
    rates = compared.ratio("theirs", "ours", lambda found: float(found[0]))
    rates = replace(rates, rounds=tuple(each * documents / their_documents for each in rates.rounds))
    ours_per_s, theirs_per_s = (counts[who] / compared.middle(who, lambda found: float(found[0])) for who in counts)
    _, dropped, linked = compared.found["ours"][0]
    their_dropped = compared.found["theirs"][0][1]
    pairs, similarities = truth(texts_of(options.data, documents))
    best = np.zeros(documents)
    for side in (0, 1):
        np.maximum.at(best, pairs[:, side], similarities)
    cluster = np.arange(documents)
    cluster[linked[:, 0]] = linked[:, 1]
    alike = pairs[similarities >= RULE.threshold]
    found = cluster[alike[:, 0]] == cluster[alike[:, 1]]
    result = Result(
        {
            "precision": float((best[dropped] >= RULE.threshold).mean()),
            "recall": float(found.mean()),
        },
        [
            ("documents/s, ours", f"{ours_per_s:,.0f}"),
            ("documents/s, datasketch", f"{theirs_per_s:,.0f} ({their_documents} documents, {their_dropped} dropped)"),
            ("dropped", f"{len(dropped)} of {documents}"),
            (
                "dropped with a partner within 0.05 of the threshold",
                f"{(best[dropped] >= RULE.threshold - 0.05).mean():.4f}",
            ),
            ("pairs at the threshold or above", f"{len(alike)}"),
        ],
    )
    result.compare("ratio_to_datasketch", rates)
    return result


def texts_of(data: Path | None, documents: int) -> list[str]:
    """Returns real texts. Three in ten texts are copies of other texts, with up to a tenth of their words changed."""
    if data:
        with gzip.open(data / FILE, "rt") as lines:
            real = [json.loads(line)["text"] for line in lines]
    else:
        from pydoc_data.topics import topics

        real = [sentence for text in topics.values() for sentence in re.split(r"(?<=[.:])\s+", text)]
    draw = random.Random(0)
    texts: list[str] = []
    while len(texts) < documents * 7 // 10:
        text = draw.choice(real) if data else " ".join(draw.choices(real, k=draw.randint(4, 12)))
        if len(text.split()) >= 20:
            texts.append(text)
    texts += [_edited(draw.choice(texts), draw) for _ in range(documents - len(texts))]
    draw.shuffle(texts)
    return texts


def _edited(text: str, draw: random.Random) -> str:
    found = text.split()
    for _ in range(draw.randint(0, max(1, len(found) // 10))):
        place = draw.randrange(len(found))
        removed, added = draw.choice([(0, 1), (1, 0), (1, 1)])
        found[place : place + removed] = [f"new{place}"] * added
    return " ".join(found)


def ours(data: Path | None, documents: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the time [s], the dropped documents, and the first document of each document's cluster."""
    os.environ["RAYON_NUM_THREADS"] = "1"  # one thread, as in a Ray task
    texts = texts_of(data, documents)
    sign_chunk(Path(tempfile.mkdtemp()), (0, 0, 0), texts[:10], RULE)  # loads modules before the time is measured
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        chunks = []
        for number, start in enumerate(range(0, documents, CHUNK)):
            part = texts[start : start + CHUNK]
            sign_chunk(Path(folder), (0, 0, number), part, RULE)
            chunks.append({"source": 0, "item": 0, "chunk": number, "documents": len(part)})
        found = Match(parts_of(Path(folder), chunks), 1, RULE.threshold)({"id": np.zeros(1, np.int64)})
        numbers, firsts = clusters(merged([np.stack([found["first"], found["document"]], axis=1)]))
        seconds = time.perf_counter() - began
    return seconds, numbers[numbers != firsts], np.stack([numbers, firsts], axis=1)


def theirs(data: Path | None, documents: int) -> tuple[float, int]:
    """Returns the time [s], and how many documents duplicate an earlier document according to datasketch."""
    from datasketch import MinHash, MinHashLSH

    texts = texts_of(data, documents)
    began = time.perf_counter()
    index = MinHashLSH(num_perm=RULE.permutations, params=RULE.bands)
    signed: list[MinHash] = []
    dropped = 0
    for number, text in enumerate(texts):
        found = words(normalised(text))
        n = min(RULE.n, len(found))
        runs = {" ".join(found[start : start + n]).encode() for start in range(len(found) - n + 1)}
        signature = MinHash(num_perm=RULE.permutations)
        signature.update_batch(runs)
        dropped += any(signed[other].jaccard(signature) >= RULE.threshold for other in index.query(signature))
        index.insert(number, signature)
        signed.append(signature)
    return time.perf_counter() - began, dropped


def truth(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs that share a shingle, and their exact Jaccard similarity: int64 [pairs, 2] and float64 [pairs]."""
    sets = [np.unique(shingles(normalised(text), RULE.n)) for text in texts]
    holders: dict[int, list[int]] = defaultdict(list)
    for number, runs in enumerate(sets):
        for run in runs.tolist():
            holders[run].append(number)
    shared: dict[tuple[int, int], int] = defaultdict(int)
    for numbers in holders.values():
        if len(numbers) <= COMMON:
            for place, one in enumerate(numbers):
                for other in numbers[place + 1 :]:
                    shared[one, other] += 1
    near = [pair for pair, common in shared.items() if common * 2 >= 0.5 * min(len(sets[pair[0]]), len(sets[pair[1]]))]
    similarities = []
    for one, other in near:
        common = len(np.intersect1d(sets[one], sets[other], assume_unique=True))
        similarities.append(common / (len(sets[one]) + len(sets[other]) - common))
    return np.array(near, np.int64).reshape(-1, 2), np.array(similarities)


if __name__ == "__main__":
    main("dedup", TARGETS, measure)
