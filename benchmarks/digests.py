"""Measures the time to sign a checkpoint, as a share of writing and signing it, and the speed of SHA-256 in MB/s.

A checkpoint of random numbers (weights and two moments, 12 bytes per parameter) is written with `torch.save` as
DeepSpeed does at ZeRO stage 2 (one file of weights, one of moments) and signed. Writing and signing alternate in
rounds.
"""

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import Options, Result, main, workplace

TARGETS = {"seal_share": ("<=", 0.6)}
"""Maximum share of the time that is spent on signing. Files are written to the page cache, so the share is larger than
with a real disk."""


def measure(options: Options) -> Result:
    """Writes and signs checkpoints, and measures the times."""
    import torch

    from adapt.runner.digest import sha256_of, sha256_of_all
    from adapt.runner.secret import Secret
    from adapt.train.checkpoints.stored_checkpoints import Sealing, write_seal

    parameters, rounds = (20_000_000, 3) if options.quick else (125_000_000, 5)
    weights, moments = torch.rand(parameters), torch.rand(2, parameters)
    sealing = Sealing(Secret(b"the key of the benchmark"), "benchmark")
    wrote, sealed, one, all_ = [], [], [], []
    with workplace() as place:
        for _ in range(rounds):
            folder = Path(tempfile.mkdtemp(dir=place))
            start = time.perf_counter()
            torch.save({"module": weights}, folder / "weights.pt")
            torch.save({"moments": moments}, folder / "moments.pt")
            written = time.perf_counter()
            write_seal(folder, 0, 1, "step-00000001", sealing)
            end = time.perf_counter()
            sha256_of(folder / "moments.pt")
            alone = time.perf_counter()
            sha256_of_all(folder, ["weights.pt", "moments.pt"])
            wrote.append(written - start)
            sealed.append(end - written)
            one.append(8 * parameters / (alone - end) / 1e6)
            all_.append(12 * parameters / (time.perf_counter() - alone) / 1e6)
            for file in folder.iterdir():
                file.unlink()
    shares = [seal / (write + seal) for write, seal in zip(wrote, sealed, strict=True)]
    details = [
        ("share, lowest and highest", f"{min(shares):.0%} to {max(shares):.0%}"),
        ("checkpoint", f"{12 * parameters / 1e9:.2f} GB"),
        ("written in", f"{statistics.median(wrote):.2f} s"),
        ("sealed in", f"{statistics.median(sealed):.2f} s"),
        ("SHA-256 of one file", f"{statistics.median(one):,.0f} MB/s"),
        ("SHA-256 of two files at once", f"{statistics.median(all_):,.0f} MB/s"),
    ]
    return Result({"seal_share": statistics.median(shares)}, details)


if __name__ == "__main__":
    main("digests", TARGETS, measure)
