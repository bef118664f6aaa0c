"""Trials of a search over the same jobs as separate commands, and how much work trials share.

`ratio`: the time of TAPT trials as separate commands, each with a store of its own, one after another, over the time of
`jobs/tune.py` with the same values; commands start Ray, prepare the text and measure the base model each time.
`saved_share`: of the stages of all trials, those that another trial had made.
"""

import json
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import classify
from benchmarks.common import Options, Result, apart, finished, job, main, workplace

TARGETS = {"ratio": (">=", 2.0), "saved_share": (">=", 0.3)}
TRIALS, FEWER = 16, 2
SPACE = {"training.learning_rate": {"loguniform": [1e-5, 1e-3]}}


def measure(options: Options) -> Result:
    """Both ways on one machine, one after the other."""
    trials = FEWER if options.quick else TRIALS
    with workplace() as folder:
        model = options.models and options.models / "bert-tiny-general"
        common = _given(folder, classify.Case("tiny", options.data, model), steps=4 if options.quick else 40)
        search = ["--space", str(folder / "space.yaml"), "--job=tapt", f"--tune.samples={trials}"]
        began = time.perf_counter()
        objectives = "--tune.objectives=[heldout_loss_after]"
        found = finished(job([*common(folder / "one"), *search, objectives, "--tune.fresh_seeds=[]"], "tune"))
        together = time.perf_counter() - began
        record = json.loads((Path(found["path"]) / "stage.json").read_text())["metrics"]
        began = time.perf_counter()
        for row in record["trials"]:
            values = [f"--{name}={value}" for name, value in row["values"].items()]
            finished(job([*common(folder / f"trial-{row['number']}"), *values], "tapt"))
        apart_s = time.perf_counter() - began
    shared, stages = record["shared"], record["stages"]
    count = len(record["trials"])
    details = [
        (f"{count} trials, jobs/tune.py", f"{together:.0f} s"),
        (f"{count} commands, jobs/tapt.py", f"{apart_s:.0f} s"),
        ("stages of all trials", f"{stages}; {shared} times one of another trial was found"),
    ]
    return Result({"ratio": apart_s / together, "saved_share": shared / (stages + shared)}, details)


def _given(folder: Path, case: classify.Case, steps: int) -> Any:
    """The arguments that all have in common, by the store."""
    model = case.model or apart(_model, case, folder / "model")
    splits = {split: str(file) for split, file in _task(folder).items()}
    config = {
        "model": {"path": str(model)},
        "task": {"name": "topics", **splits},
        "training": {"sequence_length": 128, "max_steps": steps, "global_batch_size": 16},
        "tapt": {"batch_examples": None},
        "evaluation": {"sequence_length": 128},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "space.yaml").write_text(yaml.safe_dump(SPACE))
    return lambda store: ["--config", str(folder / "config.yaml"), f"--storage.root={store}"]


def _model(case: classify.Case, folder: Path) -> Path:
    """A random model of this size, with its tokenizer."""
    classify.language_model(case).save_pretrained(folder)
    classify.tokenizer(case).save_pretrained(folder)
    return folder


def _task(folder: Path) -> dict[str, Path]:
    """Made up texts of two classes, in three splits."""
    texts, labels = classify.made_up()
    files = {}
    for number, split in enumerate(("train", "dev", "test")):
        files[split] = folder / f"{split}.jsonl"
        rows = list(zip(texts, labels, strict=True))[number::8]
        files[split].write_text("".join(json.dumps({"text": text, "label": str(label)}) + "\n" for text, label in rows))
    return files


if __name__ == "__main__":
    main("sweep", TARGETS, measure)
