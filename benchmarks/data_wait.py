"""Measures how long training waits for data, and how many cores the reading of data uses.

A small masked language model (6 layers of 384) trains on real text in our training loop, with one rank. As in a job,
Ray Data (on a local Ray) supplies the batches. The wait for the first batch counts as start-up and is left out.

`prepared_cores` and `streaming_cores` are the number of cores that the reading of prepared shards and of streamed text
uses. The consumer computes nothing and takes four batches per second. The idle use of Ray is subtracted.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import Options, Result, apart, corpus_file, main, workplace
from benchmarks.texts import GROUPED_FILE, Case

TARGETS = {
    "prepared": ("<=", 0.02),
    "streaming": ("<=", 0.02),
    "prepared_cores": ("<=", 0.05),
    "streaming_cores": ("<=", 0.05),
}
ROWS, LENGTH = 32, 128
WINDOW_TOKENS = 2**15
"""Number of tokens in a window of streamed text. It is smaller than in jobs, so that a short run reaches the
boundaries between windows, where waits occur."""


def measure(options: Options) -> Result:
    """Measures training on prepared shards and on streamed text, each in a separate process."""
    result = Result({})
    steps = 6 if options.quick else 120
    with workplace() as folder:
        file = options.data / GROUPED_FILE if options.data else corpus_file(folder, 6_000 if options.quick else 40_000)
        for feed in ("prepared", "streaming"):
            found = apart(train, feed, file, options.models, steps)
            result.figures[feed] = found["wait"] / found["seconds"]
            rate = found["tokens"] / found["seconds"]
            result.details.append((feed, f"{found['wait']:.3f} of {found['seconds']:.1f} s, {rate:,.0f} tokens/s"))
            result.figures[f"{feed}_cores"] = apart(cores, feed, file, options.models, 2.0 if options.quick else 20.0)
    return result


def train(feed: str, file: Path, models: Path | None, steps: int) -> dict[str, float]:
    """Trains on prepared or streamed text. Returns the total time [s], the waiting time [s] and the tokens."""
    import torch
    import torch.distributed as dist

    from adapt.config import ObjectiveConfig, ResourcesConfig, TrainingConfig
    from adapt.method.base import Method
    from adapt.model.packing.isolation import keep_documents_apart
    from adapt.model.tokenizer import load_tokenizer
    from adapt.objective.masking import MaskedLanguageModelling
    from adapt.ray.runtime import connect
    from adapt.train.engine import Engine
    from adapt.train.loop import Loop
    from adapt.train.model_options import resolve
    from adapt.train.training_run import Progress
    from benchmarks.ours import alone
    from benchmarks.texts import build_model

    case = Case("small", "grouped", ROWS, LENGTH, None, models)
    alone()
    connect(ResourcesConfig())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training = TrainingConfig(max_steps=steps, global_batch_size=ROWS, sequence_length=LENGTH, log_interval_steps=10**6)
    model = build_model(case).eval()
    keep_documents_apart(model)
    engine = Engine(model.train().to(device), training, 0, resolve("auto", device), ROWS, 1)
    objective = MaskedLanguageModelling(ObjectiveConfig(), load_tokenizer(_source(models)), 0)
    loop = Loop(engine, objective, Method(), training, ROWS, steps, 0)
    progress = Progress()
    with tempfile.TemporaryDirectory() as folder, batches(feed, file, models, Path(folder), steps) as found:
        loop.run(found, progress, lambda _: None, lambda _: None)
    dist.destroy_process_group()
    return {"seconds": progress.seconds, "wait": progress.data_wait_seconds, "tokens": float(progress.tokens)}


def cores(feed: str, file: Path, models: Path | None, seconds: float) -> float:
    """Returns the number of cores that reading takes. Measures for `seconds`, after a warm-up of equal length."""
    from adapt.config import ResourcesConfig
    from adapt.ray.runtime import connect
    from benchmarks.ours import alone

    alone()
    connect(ResourcesConfig())
    with tempfile.TemporaryDirectory() as folder, batches(feed, file, models, Path(folder), 10**6) as found:
        next(found)
        for _ in range(2):
            began, before, end = time.monotonic(), _cpu_seconds(), time.monotonic() + seconds
            while time.monotonic() < end:
                next(found)
                time.sleep(0.25)
            used = (_cpu_seconds() - before) / (time.monotonic() - began)
    time.sleep(5)  # waits until the reader processes have ended
    began, before = time.monotonic(), _cpu_seconds()
    time.sleep(seconds)
    return used - (_cpu_seconds() - before) / (time.monotonic() - began)


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and its children, among them Ray [s]."""
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def batches(
    feed: str, file: Path, models: Path | None, folder: Path, steps: int
) -> AbstractContextManager[Iterator[Any]]:
    """Yields the batches of a rank, from prepared shards or from streamed text."""
    from adapt.config import CorpusConfig
    from adapt.corpus.corpora import PLAIN
    from adapt.corpus.files.manifest import build_manifest
    from adapt.corpus.prepare_corpus import prepare
    from adapt.corpus.shard_batches import Feed, streamed
    from adapt.corpus.streaming import Online, serve, served
    from adapt.corpus.token_shards import Cut
    from adapt.model.locate import Pretrained
    from adapt.runner.digest import Digests

    corpus, pretrained = CorpusConfig(paths=str(file)), Pretrained(_source(models), _source(models))
    manifest = build_manifest(corpus, Digests(folder / "digests.json"))
    (prepared := folder / "prepared").mkdir()
    if feed == "prepared":
        prepare(manifest, corpus, pretrained, prepared)
        return streamed(Feed.of(str(prepared), LENGTH, ROWS, 0, 0, steps))
    online = Online.of(manifest, corpus, pretrained, PLAIN, Cut(LENGTH, ROWS, 0, WINDOW_TOKENS), folder)
    return served(serve(online, 0, 1), 0, 0, steps)


def _source(models: Path | None) -> Path:
    """Returns the folder with the tokenizer."""
    from adapt.model.demo_checkpoint import demo_checkpoint
    from benchmarks.texts import SMALL

    return models / SMALL if models else demo_checkpoint("demo:bert-tiny")


if __name__ == "__main__":
    main("data_wait", TARGETS, measure)
