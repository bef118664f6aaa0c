"""Measures the speed of our fine-tuning, for the benchmark `benchmarks.finetune`."""

import time
from pathlib import Path

import numpy as np

from benchmarks.classify import BATCH, MAX_LENGTH, WARM_UP, Case, examples, language_model, tokenizer
from benchmarks.common import workplace

FEW = 4
EPOCHS = 3


def ours(case: Case, steps: int) -> dict[str, float]:
    """Fine-tunes with the loop of our jobs, without Ray. Returns examples_per_s and cpu_s_per_example."""
    _trained(case, WARM_UP)
    cpu, seconds = _trained(case, steps)
    return {"examples_per_s": steps * BATCH / seconds, "cpu_s_per_example": cpu / (steps * BATCH)}


def _trained(case: Case, steps: int) -> tuple[float, float]:
    """Fine-tunes for a number of steps. Returns CPU time and elapsed time [s]."""
    from adapt.config import Config, FinetuneConfig
    from adapt.finetune.examples import Problem
    from adapt.finetune.finetune_loop import FinetuneDevice, FinetuneSettings, LoopInput, train
    from adapt.finetune.seed_run import Tuning
    from adapt.model.packing.isolation import keep_documents_apart
    from adapt.train.model_options import apply_options

    place = FinetuneDevice.here("auto")
    settings = FinetuneSettings(FinetuneConfig(batch_size=BATCH), epochs=1, pooling="first", max_length=MAX_LENGTH)
    model = language_model(case).eval()
    keep_documents_apart(model)
    apply_options(model, Config().training, place.device)
    with workplace() as folder:
        prepared(case, folder)
        problem = Problem.load(folder, MAX_LENGTH, [])
    tuning = Tuning(model.base_model, problem, settings, 0, place)
    cpu = time.process_time()
    history = train(LoopInput(tuning.classifier, tuning.loss, lambda: 0.0, np.ones(steps * BATCH)), settings, 0)
    return time.process_time() - cpu, history.seconds


def prepared(case: Case, folder: Path, most: int | None = None) -> None:
    """Writes the task as the stage `task` would. Some of the train examples are used as dev and test."""
    from adapt.task.prepare_task import Facts, Split

    rows = examples(case)[:most]
    labels = [str(number) for number in range(max(label for _, label in rows) + 1)]
    Facts("benchmark", "single_label", labels, "macro_f1").save(folder)
    for name, part in (("train", rows), ("dev", rows[:FEW]), ("test", rows[:FEW])):
        tokens = [np.array(ids, np.int32) for ids, _ in part]
        segments = [np.zeros(len(ids), np.int8) for ids, _ in part]
        ids = [str(number) for number in range(len(part))]
        Split(ids, tokens, segments, [label for _, label in part], [False] * len(part)).save(folder, name)


def seeds(case: Case, folder: Path, number: int, cores: int, examples: int, rounds: int) -> dict[str, list[float]]:
    """Measures fine-tuning runs through Ray: `in_turn` (one after another) and `together` (in parallel) [s].

    Runs in turn have all cores, and parallel runs one core each. The two ways alternate. Each round gives one time per
    way.
    """
    from concurrent.futures import ThreadPoolExecutor

    from adapt.config import Config, FinetuneConfig, ResourcesConfig
    from adapt.finetune.ray_task import FinetuneRun, run_finetuning
    from adapt.model.locate import Pretrained
    from adapt.ray.runtime import connect

    model, task = folder / "model", folder / "task"
    task.mkdir()
    language_model(case).save_pretrained(model)
    tokenizer(case).save_pretrained(model)
    prepared(case, task, examples)
    connect(ResourcesConfig())

    def runs(cpus: int, at_once: int, name: str) -> float:
        config = Config(finetune=FinetuneConfig(epochs=EPOCHS, cpus_per_seed=cpus, seeds=list(range(number))))
        start = Pretrained(model, model)
        begin = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(
                pool.map(
                    lambda seed: run_finetuning(FinetuneRun(config, start, str(task), seed), folder / f"{name}-{seed}"),
                    range(number),
                )
            )
        return time.perf_counter() - begin

    times: dict[str, list[float]] = {"together": [], "in_turn": []}
    ways = [("together", 1, number), ("in_turn", cores, 1)]
    for each in range(rounds):
        for way, cpus, at_once in ways if each % 2 == 0 else ways[::-1]:
            runs(cpus, at_once, f"warm-up-{each}-{way}")  # untimed warm-up: Ray starts processes, which load torch
            times[way].append(runs(cpus, at_once, f"{way}-{each}"))
    return times
