"""What selecting costs beside reading and cleaning the pool, and that its memory does not grow with the pool.

Each kind runs in a process of its own, on one core, and is measured by its CPU time: of reading and cleaning the pool
once, and of choosing. DSIR and the classifier read it twice, so a ratio of 2 would be selection for nothing.
"""

import time
from pathlib import Path

from benchmarks.common import Options, Result, apart, main, peak_bytes, workplace
from benchmarks.corpora import write_jsonl

TARGETS = {
    "dsir_over_reading": ("<=", 4.0),
    "classifier_over_reading": ("<=", 4.0),
    "peak_growth": ("<=", 1.15),
}
BUDGET, TARGET = 500, 1000
"""Documents that are taken, and texts of the target: the first of the pool."""


def measure(options: Options) -> Result:
    """Selects from a pool, and from one ten times smaller."""
    megabytes = 20 if options.quick else 200
    with workplace() as folder:
        small = write_jsonl(folder / "small.jsonl", megabytes // 10, options.data)
        large = write_jsonl(folder / "large.jsonl", megabytes, options.data)
        reading, documents, _ = apart(run, large, "")
        details = [("reading and cleaning", f"{large.stat().st_size / 1e6 / reading:.1f} MB/s of CPU time")]
        figures = {}
        for kind in ("random", "dsir", "classifier"):
            seconds, _, peak = apart(run, large, kind)
            details.append((kind, f"{documents / seconds:,.0f} documents/s, {seconds / reading:.2f} of reading"))
            if kind != "random":
                figures[f"{kind}_over_reading"] = seconds / reading
            if kind == "dsir":
                figures["peak_growth"] = peak / apart(run, small, kind)[2]
    return Result(figures, details)


def run(pool_file: Path, kind: str) -> tuple[float, int, int]:
    """CPU seconds, documents, and most memory [bytes] of choosing from a pool; without a kind, of reading it."""
    from adapt.config import Config, CorpusConfig, SelectConfig
    from adapt.corpus.dedup.deduplicate import Alike
    from adapt.corpus.files.manifest import build_manifest
    from adapt.runner.digest import Digests
    from adapt.select.base import Given
    from adapt.select.choose import Budget, choose
    from adapt.select.pool import Pool
    from adapt.select.table import steps_of

    corpus = CorpusConfig(paths=str(pool_file))
    pool = Pool(build_manifest(corpus, Digests()), corpus)
    target = [str(text) for _, text in zip(range(TARGET), pool, strict=False)]
    steps = steps_of(SelectConfig(kind=kind), 0) if kind else ()
    start = time.process_time()
    if steps:
        given, selections = Given(pool, target, Config()), [step.selection for step in steps]
        choose(selections, given, Budget(documents=BUDGET), 1.0, Alike(near=True), lambda texts: [1] * len(texts))
    else:
        for _ in pool:
            pass
    return time.process_time() - start, pool.tally.kept, peak_bytes()


if __name__ == "__main__":
    main("select", TARGETS, measure)
