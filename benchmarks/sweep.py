"""Compares the trials of a search with the same jobs as separate commands, and measures how much work trials share.

`ratio`: time of TAPT trials as separate commands, one after another and each with a new storage, divided by the time of
`dontstop tune` with the same values. Each command starts Ray, prepares the text and measures the base model.
`saved_share`: share of the stages of all trials that another trial had already run. `asha_gain`: best dev loss of
random search minus best dev loss of ASHA, with the same number of steps [nats]. `stop_to_free_s`: longest time from a
scheduler's stop of a trial until its workers are free.
"""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks import classify
from benchmarks.common import Options, Result, apart, finished, job, main, workplace
from benchmarks.halving import Halving, halving
from benchmarks.rounds import alternate

TARGETS = {"ratio": (">=", 2.0), "saved_share": (">=", 0.3), "asha_gain": (">=", 0.0), "stop_to_free_s": ("<=", 10.0)}
TRIALS, FEWER = 16, 2
STEPS, FEWER_STEPS = 40, 4
HALVED_STEPS, FEWER_HALVED_STEPS = 90, 12
SPACE = {"training.learning_rate": {"loguniform": [1e-5, 1e-2]}}
Common = Callable[[Path], list[str]]


def measure(options: Options) -> Result:
    """Measures the search and the separate commands in alternation, then ASHA and random search."""
    with workplace() as folder:
        model = options.models / "bert-tiny-general" if options.models else None
        common = _given(folder, classify.Case("tiny", options.data, model))
        search = ["--space", str(folder / "space.yaml"), "--job=tapt", "--tune.objectives=[losses.domain.after]"]
        search.append("--tune.fresh_seeds=[]")
        together = _together_and_apart(folder, common, search, options.quick)
        steps = FEWER_HALVED_STEPS if options.quick else HALVED_STEPS
        halved = apart(halving, [*common(folder / "halving"), *search], steps, options.quick)
    figures = {
        **together.figures,
        "asha_gain": halved.random - halved.asha,
        "stop_to_free_s": max(halved.stop_to_free_s.rounds),
    }
    ratios = {**together.ratios, "stop_to_free_s": halved.stop_to_free_s}
    return Result(figures, [*together.details, *_told(halved)], ratios)


def _together_and_apart(folder: Path, common: Common, search: list[str], quick: bool) -> Result:
    steps = f"--training.max_steps={FEWER_STEPS if quick else STEPS}"
    samples = f"--tune.samples={FEWER if quick else TRIALS}"
    places = (folder / str(number) for number in itertools.count())

    def search_once() -> tuple[float, dict[str, Any]]:
        began = time.perf_counter()
        found = finished(job([*common(next(places)), *search, steps, samples], "tune"))
        seconds = time.perf_counter() - began
        return seconds, json.loads((Path(found["path"]) / "stage.json").read_text())["metrics"]

    _, record = search_once()  # this call reads the record of the finished search

    def commands() -> tuple[float, dict[str, Any]]:
        place = next(places)
        began = time.perf_counter()
        for row in record["trials"]:
            values = [f"--{name}={value}" for name, value in row["values"].items()]
            finished(job([*common(place / f"trial-{row['number']}"), steps, *values], "tapt"))
        return time.perf_counter() - began, record

    compared = alternate({"together": search_once, "apart": commands})
    together, apart_s = (compared.middle(side, lambda found: found[0]) for side in compared.found)
    shared, stages, count = record["shared"], record["stages"], len(record["trials"])
    details = [
        (f"{count} trials, jobs/tune.py", f"{together:.0f} s"),
        (f"{count} commands, jobs/tapt.py", f"{apart_s:.0f} s"),
        ("stages of all trials", f"{stages}; {shared} times one of another trial was found"),
    ]
    result = Result({"saved_share": shared / (stages + shared)}, details)
    result.compare("ratio", compared.ratio("apart", "together", lambda found: found[0]))
    return result


def _told(halved: Halving) -> list[tuple[str, str]]:
    return [
        ("best loss on dev, ASHA", f"{halved.asha:.4f} after {halved.asha_steps} steps of all trials"),
        ("best loss on dev, random", f"{halved.random:.4f} after {halved.random_steps} steps"),
        ("trials stopped by ASHA", str(len(halved.stop_to_free_s.rounds))),
    ]


def _given(folder: Path, case: classify.Case) -> Common:
    """Returns the arguments that all trials with one storage share."""
    model = case.model or apart(_model, case, folder / "model")
    splits = {split: str(file) for split, file in _task(folder).items()}
    config = {
        "model": {"path": str(model)},
        "task": {"name": "topics", **splits},
        "training": {"sequence_length": 128, "global_batch_size": 16},
        "tapt": {"batch_examples": None},
        "evaluation": {"sequence_length": 128},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "space.yaml").write_text(yaml.safe_dump(SPACE))
    return lambda store: ["--config", str(folder / "config.yaml"), f"--storage.root={store}"]


def _model(case: classify.Case, folder: Path) -> Path:
    """Makes a random model of the case's size, with the case's tokenizer."""
    classify.language_model(case).save_pretrained(folder)
    classify.tokenizer(case).save_pretrained(folder)
    return folder


def _task(folder: Path) -> dict[str, Path]:
    """Generates texts of two classes, and writes them as three splits."""
    texts, labels = classify.made_up()
    files = {}
    for number, split in enumerate(("train", "dev", "test")):
        files[split] = folder / f"{split}.jsonl"
        rows = list(zip(texts, labels, strict=True))[number::8]
        files[split].write_text("".join(json.dumps({"text": text, "label": str(label)}) + "\n" for text, label in rows))
    return files


if __name__ == "__main__":
    main("sweep", TARGETS, measure)
