"""Checks that jobs still compute the same results, bit for bit: digests of weights, predictions and losses.

python -m benchmarks.equality --data ../shared/data --models ../shared/models --against benchmarks/equality.json
python -m benchmarks.equality --data ../shared/data --models ../shared/models --out FILE [--only NAME ...]

Small jobs run through the command line, each with new storage, so the check works with any version of the code that
accepts the jobs' options. A result has the name of its stage, without the stage's key. Results with the same name are
numbered in order of their values. `--against` exits with 1 if a result differs or is missing. A result that is now
stored under another name does not count as missing.

Digests are valid on one kind of machine only (processor, number of cores, versions of torch and of the packages whose
docstrings are the demo's text). On another machine, make the reference file again with the old code.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import ROOT, machine

Config = dict[str, Any]
Found = dict[str, dict[str, Any]]
"""Results: a digest or number, keyed by kind of result and name."""

SMALL: Config = yaml.safe_load("""
training: {max_steps: 8, global_batch_size: 8, micro_batch: 4, sequence_length: 64, learning_rate: 5.0e-4,
    precision: fp32, checkpoint_interval_steps: 4}
evaluation: {sequence_length: 64, max_documents: 40, bootstrap_samples: 200}
finetune: {seeds: [0, 1], epochs: 6, max_length: 64, learning_rate: 2.0e-3}
""")
UNSTEADY = re.compile(
    r"second|_s$|hours|goodput|mfu|memory|wait|cost|started|price|what was run|reproduce", re.IGNORECASE
)
"""Pattern for the names of metrics and parts of a report that depend on time or machine."""


@dataclass
class Place:
    """Folders of one case, which is a set of jobs whose results are compared: inputs, storage and output."""

    folder: Path
    data: Path
    models: Path
    root: Path
    figures: dict[str, float] = field(default_factory=dict)

    def run(self, job: str, config: Config, *arguments: str) -> Config:
        """Runs jobs/JOB.py to its end, and returns the parsed last line of stdout."""
        file, errors = self.folder / f"{job}.yaml", self.folder / f"{job}.err"
        file.write_text(json.dumps(config))  # JSON is valid YAML.
        words = list(arguments) or [f"--config={file}", f"--storage.root={self.root}"]
        command = [sys.executable, f"jobs/{job}.py", *(str(file) if word == "FILE" else word for word in words)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        with errors.open("w") as stream:
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{errors.read_text()[-3000:]}")
        line: Config = json.loads(done.stdout.splitlines()[-1])
        self.figures |= dict(numbers(line["metrics"], config.get("name", job)))
        return line

    def corpus(self, name: str, count: int, repeated: int = 0) -> str:
        """Writes the first documents of a corpus, and near copies of the first few documents."""
        texts = [json.loads(line)["text"] for line in first(self.data / "corpora" / f"{name}.jsonl.gz", count)]
        texts += [f"{text} So much for that." for text in texts[:repeated]]
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return str(path)

    def domains(self, repeated: int = 0) -> list[Config]:
        cs, biomed = self.corpus("cs_acl_abstracts", 300, repeated), self.corpus("biomed_pubmed", 400)
        return [{"name": "cs", "paths": cs}, {"name": "biomed", "paths": biomed}]

    def task(self, name: str, **more: str) -> Config:
        splits = {}
        for split, count in (("train", 96), ("dev", 48), ("test", 48)):
            path = self.folder / f"{name}-{split}.jsonl"
            path.write_text("".join(first(self.data / "tasks" / name / f"{split}.jsonl.gz", count)))
            splits[split] = str(path)
        return {"name": name, **splits, **more}

    def small(self, **sections: Any) -> Config:
        """Returns the settings that all cases share, merged with further settings."""
        both = {name: {**SMALL[name], **sections.get(name, {})} for name in SMALL}
        return {"model": {"path": str(self.models / "bert-tiny-general")}, **sections, **both}


def first(path: Path, count: int) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(islice(file, count))


def demo(place: Place) -> None:
    shorter = ["--training.max_steps=50", "--training.micro_batch=32", f"--storage.root={place.root}"]
    place.run("dapt", {}, "--config=jobs/recipes/demo.yaml", *shorter)


def dapt(place: Place) -> None:
    """Runs DAPT with two weighted sources, replayed and general text, near duplicates and gradient accumulation."""
    cs, biomed = place.domains(repeated=40)
    sources = [{**cs, "weight": 0.7}, {**biomed, "weight": 0.3}]
    corpus = {"sources": sources, "deduplicate": "near", "heldout_fraction": 0.1}
    mixture = {"replay_paths": place.corpus("general_enwiki", 200), "replay_fraction": 0.2}
    general = {"general_paths": place.corpus("general_wikitext2", 200)}
    place.run("dapt", place.small(corpus=corpus, mixture=mixture, evaluation=general))


def streamed(place: Place) -> None:
    """Runs DAPT on streamed text, in the default precision."""
    corpus = {"paths": place.corpus("cs_acl_abstracts", 400), "streaming": True, "heldout_fraction": 0.1}
    place.run("dapt", place.small(name="streamed", corpus=corpus, training={"precision": "auto", "micro_batch": 8}))


def tapt(place: Place) -> None:
    """Runs TAPT with random documents from a pool, then fine-tunes with two seeds."""
    task = place.task("acl_arc")
    pool = {"pool_paths": place.corpus("cs_acl_abstracts", 400), "per_example": 2}
    adapted = place.run("tapt", place.small(name="tapt", task=task, tapt={"batch_examples": 16}, select=pool))
    place.run("finetune", place.small(name="finetune", task=task, model={"path": adapted["path"]}))


def sequence(place: Place, zero_stage: int, workers: int) -> None:
    config = place.small(
        name="sequence",
        corpus={"sources": place.domains(), "heldout_fraction": 0.1},
        tasks=[place.task("acl_arc", domain="cs"), place.task("chemprot", domain="biomed", metric="micro_f1")],
        evaluation={"general_paths": place.corpus("general_wikitext2", 200)},
        training={"max_steps": 6},
        das={"importance_sequences": 32, "importance_batch": 8},
        resources={"zero_stage": zero_stage, "workers": workers},
    )
    place.run("sequence" if (ROOT / "jobs" / "sequence.py").exists() else "das", config)


def chain(place: Place) -> None:
    """Runs a chain with DAPT, a loss matrix, fine-tuning before and after DAPT, and a report."""
    general = {"general_paths": place.corpus("general_wikitext2", 200)}
    small = place.small(evaluation=general, resources={"stages_at_once": 1}, storage={"root": str(place.root)})
    domains, task, text = place.domains(), place.task("acl_arc"), {"corpus.heldout_fraction": 0.1}
    adapted = {"name": "DAPT", "path": "dapt"}
    unseen = [{"name": "acl_arc", "paths": [task["dev"], task["test"]]}]
    stages: Config = {
        "dapt": {"job": "dapt", "corpus.paths": domains[0]["paths"], "corpus.decontaminate": unseen, **text},
        "matrix": {"job": "evaluate", "corpus.sources": domains, "comparison.models": [adapted], **text},
        "finetune": {"job": "finetune", "for": "recipe", "from": "{recipe.start}", "task": task},
    }
    sets = {"recipe": {"base": {"start": None}, "DAPT": {"start": "dapt"}}}
    recipe = {"name": "small", "baseline": "base", "common": small, "sets": sets, "stages": stages}
    place.run("chain", recipe, "run", "FILE")


CASES: dict[str, Callable[[Place], None]] = {
    **{case.__name__: case for case in (demo, dapt, streamed, tapt, chain)},
    "sequence-zero0": partial(sequence, zero_stage=0, workers=1),
    "sequence-zero2": partial(sequence, zero_stage=2, workers=2),
}


def collected(place: Place) -> Found:
    """Reads the results that the jobs have written to the storage."""
    found: dict[str, list[tuple[str, Any]]] = {"weights": [], "predictions": [], "score": [], "losses": []}
    for file in place.root.rglob("stage.json"):
        record, folder = json.loads(file.read_text()), file.parent
        name = record["name"]
        if record["stage"] == "train":
            found["weights"] += [(name, weights_digest(path)) for path in folder.glob("model/*.safetensors")]
        elif record["stage"] == "finetune":
            for path in folder.glob("*predictions.jsonl"):
                found["predictions"].append((f"{name} {path.stem}", digest(path.read_text())))
            found["score"] += [
                (name, each) for key, each in numbers(record["metrics"]) if key.split(".")[-1] == "score"
            ]
        elif record["stage"] == "evaluate":
            for text, losses in json.loads((folder / "losses.json").read_text()).items():
                found["losses"].append((f"{name}: {text}", digest(json.dumps(losses, sort_keys=True))))
    report = {name: figure for page in place.root.glob("reports/*/report.md") for name, figure in tables(page)}
    return {**{kind: numbered(results) for kind, results in found.items()}, "figures": place.figures, "report": report}


def numbered(results: list[tuple[str, Any]]) -> dict[str, Any]:
    """Numbers the results that share a name, in the order of their values.

    The stages' keys cannot determine the order, because they differ between runs.
    """
    seen: Counter[str] = Counter()
    found = {}
    for name, result in sorted(results):
        seen[name] += 1
        found[f"{name} {seen[name]}" if seen[name] > 1 else name] = result
    return found


def weights_digest(path: Path) -> str:
    """Returns a digest of a model's tensors, which covers names, shapes, types and bytes."""
    import torch
    from safetensors.torch import load_file

    total = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def numbers(values: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yields all numbers in nested values with their dotted names, except numbers that differ between runs."""
    if isinstance(values, int | float) and not isinstance(values, bool):
        yield name, values
    elif isinstance(values, dict | list):
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            if not UNSTEADY.search(str(key)):
                yield from numbers(value, f"{name}.{key}".lstrip("."))


def tables(page: Path) -> Iterator[tuple[str, str]]:
    """Yields, for each table of a report, the heading above the table and the numbers in the table."""
    part = title = ""
    rows: dict[str, list[str]] = {}
    for line in page.read_text().splitlines():
        if line.startswith(("#", "**")):
            title = line.strip("#* ")
            part = title if line.startswith("## ") else part
        elif line.startswith("|") and not UNSTEADY.search(f"{part} {title}"):
            rows.setdefault(f"{part}: {title}", []).extend(re.findall(r"[+−-]?\d*\.\d+", line))  # noqa: RUF001
    yield from ((name, " ".join(row)) for name, row in rows.items() if row)


def compared(old: Found, new: Found) -> str:
    """Describes whether all results are the same, and lists results that differ, are missing or have a new name."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for kind, before in old.items():
        after = new.get(kind, {})
        spare = Counter(str(value) for name, value in after.items() if before.get(name) != value)
        for name, value in before.items():
            if after.get(name) != value:
                names[spare[str(value)] > 0].append(f"{kind} {name}")
                spare[str(value)] -= 1
    said = f"DIFFERENT: {'; '.join(names[False])}" if names[False] else "same"
    return f"{said} (under other names: {'; '.join(names[True])})" if names[True] else said


def header() -> dict[str, Any]:
    """Describes the code and the machine for which the digests are valid."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    packages = sorted({f"{each.name}=={each.version}" for each in distributions() if each.name != "dontstop"})
    return {"commit": commit, "machine": {**machine(), "packages": digest("\n".join(packages))}}


def run_case(name: str, data: Path, models: Path) -> Found:
    with tempfile.TemporaryDirectory(prefix="equality-") as folder:
        place = Place(Path(folder), data.resolve(), models.resolve(), root=Path(folder) / "runs")
        CASES[name](place)
        return collected(place)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equality", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with tasks/ and corpora/")
    parser.add_argument("--models", type=Path, required=True, help="folder with base models")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="these cases only")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="file for the digests; cases of the same code that it holds are kept")
    what.add_argument("--against", type=Path, help="file of digests to compare with")
    arguments = parser.parse_args()
    top, known = header(), arguments.against or arguments.out
    held = json.loads(known.read_text()) if known.exists() or arguments.against else {}
    if arguments.against and held["machine"] != top["machine"]:
        print(f"{known} is of another machine, so a difference says nothing:\n{held['machine']}\n{top['machine']}")
    cases = dict(held["cases"]) if all(held.get(key) == value for key, value in top.items()) else {}
    said = []
    for name in arguments.only:
        started = time.monotonic()
        cases[name] = run_case(name, arguments.data, arguments.models)
        said.append(compared(held["cases"][name], cases[name]) if arguments.against else "done")
        if arguments.out:
            arguments.out.write_text(json.dumps({**top, "cases": cases}, indent=1) + "\n")
        print(f"{name}: {said[-1]} [{time.monotonic() - started:.0f} s]", flush=True)
    raise SystemExit(any(each.startswith("DIFFERENT") for each in said))


if __name__ == "__main__":
    main()
