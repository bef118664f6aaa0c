"""Measures the cost of a bucket as storage root, with an S3 server on this machine.

`overhead_share` is the additional time of a DAPT job whose results go to the bucket instead of local disk, as a share
of the time with local disk. `listing_s` is the time in which a new machine reads 1,000 records. Machines pack records
into one object, which another machine reads with one request. The table also has the time without this packing.
`ran_twice` is the number of stages that ran more than once while two chains of 50 stages raced on one bucket. The
benchmark takes about 20 minutes on 2 cores, of which `--only listing` takes 15 seconds.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from adapt.runner import Done, Outcome, Store, ensure
from adapt.runner.mirror import mirror_folder
from benchmarks.chain import Nothing, Trivial
from benchmarks.common import ROOT, Options, Result, corpus_file, finished, job, parser_of, report, workplace
from benchmarks.rounds import ROUNDS, alternate
from benchmarks.s3_server import BUCKET, Server, serving

TARGETS = {"overhead_share": ("<=", 0.15), "listing_s": ("<=", 2.0), "ran_twice": ("<=", 0.0)}
PARTS = "listing", "race", "job"
RECORDS, RACE = 1000, 50
LIMIT_S = 300
"""Time limit of the race between two chains [s]."""


class Racing(Trivial):
    """A trivial stage that appends its number to a file each time it runs."""

    kind = "racing"
    noted: Path

    def run(self, folder: Path, done: Done) -> Outcome[Nothing]:
        """Writes one line to a file in the stage's folder, and the stage's number to the file of all runs."""
        with self.noted.open("a") as file:
            file.write(f"{self.number}\n")
        return super().run(folder, done)


def measure(options: Options, only: Collection[str] = PARTS) -> Result:
    """Lists records, lets chains race and runs jobs. `only` names the parts of the benchmark to run."""
    result = Result({})
    with workplace() as folder, serving() as server, _using(server):
        if "listing" in only:
            _measure_listing(result, folder, 100 if options.quick else RECORDS)
        if "race" in only:
            _measure_race(result, folder, 10 if options.quick else RACE)
        if "job" in only:
            _measure_job(result, folder, *((300, 20) if options.quick else (3000, 200)))
    return result


def _measure_listing(result: Result, folder: Path, records: int) -> None:
    unpacked, cold, warm = _listed(folder, records)
    result.figures["listing_s"] = cold * RECORDS / records
    times = f"{cold:.2f} s; {unpacked:.2f} s without the pack; {warm:.3f} s with a local copy"
    result.details.append(("records listed", f"{records:,} in {times}"))


def _measure_race(result: Result, folder: Path, race: int) -> None:
    runs = _raced(folder, race)
    result.figures["ran_twice"] = sum(n > 1 for n in runs.values())
    result.details.append(("stages of the race", f"{len(runs)} of {race} ran, {sum(runs.values())} times in all"))


def _measure_job(result: Result, folder: Path, documents: int, steps: int) -> None:
    corpus, numbers = corpus_file(folder, documents), count()

    def ran(root: str) -> float:
        began = time.perf_counter()
        finished(job(_arguments(corpus, f"{root}/{next(numbers)}", folder, steps)))
        return time.perf_counter() - began

    sides = {"bucket": lambda: ran(f"s3://{BUCKET}/jobs"), "disk": lambda: ran(str(folder / "jobs"))}
    rounds = alternate(sides, ROUNDS)
    ratio = rounds.ratio("bucket", "disk", float)
    result.figures["overhead_share"] = ratio.middle - 1
    result.details.append(("the job on disk", f"{rounds.middle('disk', float):.1f} s"))
    result.details.append(("bucket over disk", str(ratio)))


def _arguments(corpus: Path, root: str, folder: Path, steps: int) -> list[str]:
    training = [f"--training.max_steps={steps}", "--training.global_batch_size=16"]
    cadence = [f"--training.checkpoint_interval_steps={steps // 4}"]
    lengths = ["--training.sequence_length=128", "--evaluation.sequence_length=128"]
    where = ["--model.path=demo:bert-tiny", f"--corpus.paths={corpus}", f"--storage.root={root}"]
    return [*where, *training, *cadence, *lengths, f"--storage.cache={folder / 'cache'}"]


@contextmanager
def _using(server: Server) -> Iterator[None]:
    """Lets this process and the processes that it starts use the server inside the block."""
    before = dict(os.environ)
    os.environ.update(server.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _listed(folder: Path, records: int) -> tuple[float, float, float]:
    """Returns the time to list records of stages: one by one, packed in one object, and from a local copy [s]."""
    url = f"s3://{BUCKET}/listing"
    first = Store(mirror_folder(url, str(folder / "first")))
    ensure(Trivial("stage", 0, None), first)
    assert first.mirror
    bucket = first.mirror.bucket
    (name,) = bucket.objects("records/")
    read = bucket.get(name)
    assert read

    def copied(number: int) -> None:
        """Stores a copy of the record under the key and name of another stage."""
        key = f"{number:064x}"[::-1]
        values = {**json.loads(read.body), "key": key, "name": f"stage-{number}"}
        bucket.put(f"records/trivial/{key[:16]}.json", json.dumps(values).encode(), None)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(copied, range(1, records)))
    times = []
    for machine in ("second", "third", "third"):
        store = Store(mirror_folder(url, str(folder / machine)))
        assert store.mirror
        store.mirror.records._looked = -1e9  # as in a process that has not listed records yet
        began = time.perf_counter()
        found = sum(1 for _ in store.records())
        times.append(time.perf_counter() - began)
        if found != records:
            raise SystemExit(f"{found} of {records} records were listed")
    return times[0], times[1], times[2]


def _raced(folder: Path, stages: int) -> Counter[str]:
    """Runs a chain in two processes with different local copies. Returns how often each stage ran."""
    noted = folder / "noted"
    program = f"from benchmarks.storage import race; race({str(noted)!r}, {stages}, __import__('sys').argv[1])"
    command = [sys.executable, "-c", program]
    racing = [subprocess.Popen([*command, str(folder / name)], cwd=ROOT) for name in ("one", "two")]
    try:
        codes = [process.wait(LIMIT_S) for process in racing]
    except subprocess.TimeoutExpired:
        raise SystemExit(f"the race takes over {LIMIT_S} s") from None
    finally:
        for process in racing:
            process.kill()
    if any(codes):
        raise SystemExit("a chain of the race failed")
    return Counter(noted.read_text().split())


def race(noted: str, stages: int, cache: str) -> None:
    """Runs the chain of the race in this process."""
    Racing.noted = Path(noted)
    last = None
    for number in range(stages):
        last = Racing(f"stage-{number}", number, last)
    assert last
    ensure(last, Store(mirror_folder(f"s3://{BUCKET}/race", cache)))


def main() -> None:
    """Runs the parts of the benchmark that the command line names."""
    parser = parser_of("storage", __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts of the benchmark to run")
    given = parser.parse_args()
    report("storage", TARGETS, measure(Options(given.quick, given.data, given.models), given.only), given.json)


if __name__ == "__main__":
    main()
