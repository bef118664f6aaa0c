"""Measures memory and disk space while a corpus is prepared. Memory must not grow with the corpus.

Memory is the sum over all processes (driver, Ray, workers), sampled twice per second; the figure is the maximum.
Pages that several processes share are divided among these processes (proportional set size, PSS).
"""

import multiprocessing
import time
from pathlib import Path

from benchmarks.common import Options, Result, main, workplace
from benchmarks.corpora import model_folder, write_jsonl
from benchmarks.corpus_prepare import ours

TARGETS = {"peak_growth": ("<=", 1.15), "peak_gib": ("<=", 4.0), "bytes_per_token": ("<=", 2.2)}


def measure(options: Options) -> Result:
    """Prepares files of increasing size, and measures memory and disk space."""
    sizes = (80, 240) if options.quick else (100, 500, 2000)
    peaks, details = [], []
    bytes_per_token = 0.0
    with workplace() as folder:
        model = model_folder(folder / "model", options.models)
        for megabytes in sizes:
            corpus = write_jsonl(folder / "corpus.jsonl", megabytes, options.data)
            peaks.append(peak_while_preparing(model, corpus, folder / f"runs-{megabytes}"))
            bytes_per_token = disk_per_token(folder / f"runs-{megabytes}")
            details.append(
                (f"{megabytes} MB", f"peak {peaks[-1] / 2**30:.2f} GiB, {bytes_per_token:.3f} bytes a token")
            )
    figures = {
        "peak_growth": peaks[-1] / peaks[0],
        "peak_gib": max(peaks) / 2**30,
        "bytes_per_token": bytes_per_token,
    }
    return Result(figures, details)


def peak_while_preparing(model: Path, corpus: Path, root: Path) -> float:
    """Returns the largest total memory of all processes while a corpus is prepared [bytes]."""
    process = multiprocessing.get_context("spawn").Process(target=ours, args=(model, corpus, root))
    process.start()
    peak = 0
    while process.is_alive():
        peak = max(peak, _together(process.pid or 0))
        time.sleep(0.5)
    if process.exitcode:
        raise SystemExit("the preparation failed")
    return peak


def _together(root: int) -> int:
    import psutil

    total = 0
    try:
        family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for each in family:
        try:
            total += each.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def disk_per_token(root: Path) -> float:
    """Returns the size of the shards per token, including document offsets [bytes]."""
    from adapt.corpus.token_shards import TokenStream

    (folder,) = (record.parent for record in (root / "prepare").glob("*/stage.json"))
    size = sum(file.stat().st_size for file in folder.glob("*.arrow"))
    tokens = sum(TokenStream.open(folder, pattern).tokens for pattern in ("train-*.arrow", "heldout-*.arrow"))
    return size / tokens


if __name__ == "__main__":
    main("corpus_memory", TARGETS, measure)
