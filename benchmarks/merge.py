"""Measures the time to merge two 1 GB checkpoints relative to copying one of them, and the peak memory."""

import os
import shutil
import statistics
import threading
import time
from pathlib import Path

from benchmarks.common import Options, Result, apart, main, workplace
from benchmarks.rounds import alternate

TARGETS = {"ratio": ("<=", 4.0), "peak_tensors": ("<=", 4.0)}
SIDE = 1024
"""Number of rows, and number of columns, of each tensor. A tensor then has 4 MiB."""


def measure(options: Options) -> Result:
    """Copies and merges in alternating rounds. Times are from the page cache to the result on disk."""
    count = 25 if options.quick else 250
    with workplace() as folder:
        for name in ("base", "model"):
            _make(folder / name, count, seed=len(name))
        found = alternate({"copy": lambda: _copy(folder), "merge": lambda: apart(_merge, folder, False)[0]})
        copies, merges = found.found["copy"], found.found["merge"]
        peak = apart(_merge, folder, True)[1]
        size = (folder / "base" / "model.safetensors").stat().st_size
    rate = size / statistics.median(merges) / 1e6
    details = [
        ("checkpoint", f"{size / 1e6:,.0f} MB, {count} tensors"),
        ("copying one", ", ".join(f"{seconds:.2f} s" for seconds in copies)),
        ("interpolating two", ", ".join(f"{seconds:.2f} s" for seconds in merges) + f" ({rate:,.0f} MB/s)"),
    ]
    result = Result({"peak_tensors": peak}, details)
    result.compare("ratio", found.ratio("merge", "copy", float))
    return result


def _make(folder: Path, tensors: int, seed: int) -> None:
    """Writes a checkpoint of random fp32 weights, tensor by tensor."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    weights = {f"layer.{number}.weight": torch.randn(SIDE, SIDE, generator=generator) for number in range(tensors)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _copy(folder: Path) -> float:
    """Copies the weights of a checkpoint to disk. Returns the time [s]."""
    target = folder / "copy.safetensors"
    began = time.perf_counter()
    shutil.copyfile(folder / "base" / "model.safetensors", target)
    _settled(target)
    seconds = time.perf_counter() - began
    target.unlink()
    return seconds


def _merge(folder: Path, watched: bool) -> tuple[float, float]:
    """Writes the interpolation of two checkpoints. Returns the time [s] and the peak memory [number of tensors]."""
    from adapt.merge.merger import Merging
    from adapt.merge.streamed_merge import merge_models, stored_weights

    base, model, target = folder / "base", folder / "model", folder / "merged"
    target.mkdir()
    merging, peak = Merging("interpolate", (0.5,), (), None, 0), _Peak()
    if watched:
        peak.start()
    began = time.perf_counter()
    with stored_weights(model) as weights:
        merge_models(merging, base, [(model, weights)], {0.5: target})
    _settled(target / "model.safetensors")
    seconds = time.perf_counter() - began
    held = peak.stop() / (4 * SIDE * SIDE)
    shutil.rmtree(target)
    return seconds, held


def _settled(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Peak:
    """Samples the private memory of the process every millisecond. Pages of mapped files do not count."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._before = self._most = _own_bytes()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """Stops the sampling. Returns the peak memory above the memory at the start [bytes]."""
        self._stopped.set()
        return self._most - self._before

    def _watch(self) -> None:
        while not self._stopped.wait(0.001):
            self._most = max(self._most, _own_bytes())


def _own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main("merge", TARGETS, measure)
