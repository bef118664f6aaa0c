"""Creates studies with synthetic results, for tests of reports."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import metrics

from adapt.evaluate.compared_models import ModelsCompared
from adapt.evaluate.measurements import Estimate, LossChange, Similar
from adapt.runner import Finished
from adapt.runner.record import Record, load_record, plain_values
from adapt.show.report.report_page import write_report
from adapt.show.report.study import HTML, Entry, Study
from adapt.stage.domain_sequence import SequenceResult
from adapt.stage.export_model import Adapted
from adapt.stage.finetuning import Finetuned
from adapt.stage.merge_stage import Merged
from adapt.stage.select_documents import SelectionJudged
from adapt.tuning.confirm import Confirmed
from adapt.tuning.search_stage import Searched
from adapt.vocabulary.vocabulary_results import Extended
from tests.runner.made import made_up

PACKAGES = {"python": "3.11.9", "torch": "2.13.0", "transformers": "5.23.0"}
RECIPES = {"RoBERTa": (), "DAPT": ("dapt",), "TAPT": ("tapt",), "DAPT+TAPT": ("dapt", "tapt"), "¬DAPT": ("not",)}
GAINS = {"RoBERTa": 0.0, "DAPT": 0.06, "TAPT": 0.03, "DAPT+TAPT": 0.08, "¬DAPT": -0.04}
TASKS = {
    "acl_arc": (["Background", "CompareOrContrast", "Extends", "Future", "Motivation", "Uses"], 139, 0.62, "macro_f1"),
    "chemprot": ([f"CPR-{place}" for place in range(1, 14)], 600, 0.8, "micro_f1"),
    "scierc": (["COMPARE", "CONJUNCTION", "EVALUATE-FOR", "FEATURE-OF", "PART-OF", "USED-FOR"], 350, 0.74, "macro_f1"),
}


def page_of(study: Study, folder: Path) -> Path:
    """Writes the report of a study, and returns the path of its page."""
    write_report(study, folder)
    return folder / HTML


RESULTS: dict[str, type[Any]] = {
    "export": Adapted,
    "compare": ModelsCompared,
    "similarity": Similar,
    "finetune": Finetuned,
    "sequence": SequenceResult,
    "selection": SelectionJudged,
    "merge": Merged,
    "extend": Extended,
    "search": Searched,
    "confirm": Confirmed,
}
"""Classes of the synthetic results, keyed by kind of stage."""


def finished(record: Record) -> Finished[Any]:
    """Returns a record with its result. Fields that the result needs and the record lacks get synthetic values."""
    kind = RESULTS[record.stage]
    return Finished(replace(record, metrics=plain_values(made_up(kind, **record.metrics))), kind)


def loss_change(text: Any, before: float, after: float, half: float = 0.02, **more: Any) -> LossChange:
    change = after - before
    return LossChange(
        text, 1000, Estimate(before), Estimate(after), Estimate(change, change - half, change + half), **more
    )


class Fake:
    """Writes synthetic records below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rng = np.random.default_rng(0)

    def record(self, stage: str, name: str, inputs: Mapping[str, Record] | None = None, **more: Any) -> Record:
        key = hashlib.sha256(f"{stage} {name}".encode()).hexdigest()
        made = Record(
            stage=stage,
            name=name,
            key=key,
            version=1,
            what=more.get("what", {}),
            inputs={
                place: {"stage": one.stage, "key": one.key, "path": str(one.path)}
                for place, one in (inputs or {}).items()
            },
            metrics=more.get("metrics", {}),
            cost=more.get("cost", {}),
            resources={},
            outputs=more.get("outputs", {}),
            packages=more.get("packages", PACKAGES),
            started_at="2026-11-21T12:00:00+00:00",
            path=self.root / stage / f"{hashlib.sha256(name.encode()).hexdigest()[:6]}-{key[:8]}",
        )
        made.path.mkdir(parents=True, exist_ok=True)
        made.save()
        return made

    def task(self, name: str, leaked: int = 0) -> Record:
        labels, examples, _, _ = TASKS.get(name, TASKS["acl_arc"])
        sizes = {"train": 12 * examples, "dev": examples, "test": examples}
        known = {
            "examples": sizes,
            "labels": dict.fromkeys(labels, sizes),
            "leaks": {"test_in_train": leaked, "dev_in_train": 0},
            "unseen_classes": ["CPR-13"] if name == "chemprot" else [],
            "conflicting": 3 if name == "scierc" else 0,
            "empty_texts": {"train": 0, "dev": 0, "test": 1 if name == "scierc" else 0},
        }
        return self.record("task", name, metrics=known)

    def corpus(self, name: str) -> Record:
        manifest = self.record("manifest", name.removesuffix("-tapt").removesuffix("-dapt"))
        return self.record(
            "prepare",
            name,
            {"files.listing": manifest},
            metrics={"train_documents": 32_151, "train_tokens": 6_400_000},
        )

    def export(
        self, name: str, hours: float, losses: Sequence[float], start: float, after: Record | None = None, **more: Any
    ) -> Record:
        """Makes the records of an export and of its training run.

        Args:
            name: name of the training text.
            hours: device-hours of the training.
            losses: loss on held-out text before and after training, then loss on general text before and after.
            start: approximate training loss at the start.
            after: the training run that made the start model, or None for the base.
            more: further arguments of `record` for the export.
        """
        domain, general = self.corpus(name), self.corpus("general")
        train = self.record("train", name, {"corpora.domain": domain, **({"start.training": after} if after else {})})
        steps = range(10, 500, 10)
        noise = self.rng.normal(0, 0.03, len(steps))
        curve = [start * (0.7 + 0.3 * np.exp(-step / 120)) + bump for step, bump in zip(steps, noise, strict=True)]
        lines = [json.dumps({"step": s, "loss": v, "learning_rate": 1e-4}) for s, v in zip(steps, curve, strict=True)]
        (train.path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        on = {"corpora.domain": domain}
        looks = {when: self.record("evaluate", f"{when}-{name}", on) for when in ("before", "after")}
        measured = {"tokens": 6_400_000, "steps": 500, "device_seconds": hours * 3600}
        measured["losses"] = {
            text: asdict(loss_change(text, old, new))
            for text, (old, new) in {"domain": losses[:2], "general": losses[2:]}.items()
        }
        inputs = {"domain": domain, "general": general, "training": train, **looks}
        cost = {"device_hours": hours, "cost": 2.5 * hours}
        return self.record("export", name, inputs, metrics=measured, cost=cost, **more)

    def training(self, export: Record) -> Record:
        found = load_record(Path(export.inputs["training"]["path"]))
        assert found
        return found

    def finetune(self, recipe: str, task: Record, seed: int, accuracy: float, leaked: int, **more: Any) -> Record:
        labels, examples, _, metric = TASKS.get(task.name, TASKS["acl_arc"])
        truth = np.random.default_rng(len(task.name)).integers(0, len(labels), examples)
        right = self.rng.random(examples) < accuracy + 0.02 * self.rng.normal()
        degenerate = more.pop("degenerate", False)
        predicted = np.where(right, truth, self.rng.integers(0, len(labels), examples))
        predicted = np.full(examples, truth[0]) if degenerate else predicted
        flags = np.arange(examples) < leaked
        made = self.record(
            "finetune",
            f"{recipe}-{task.name}-{seed}-{more.pop('kind', '')}",
            {"task": task, **more.pop("started", {})},
            metrics={
                "metric": metric,
                "mode": "fine_tune",
                "seed": seed,
                "degenerate": bool(degenerate),
                "truncated": {"train": 40, "dev": 2, "test": 3} if task.name == "chemprot" else {},
                "ece": 0.08,
                "nll": 0.9,
                "brier": 0.4,
                "score_without_leaks": _score(metric, truth[~flags], predicted[~flags]) if leaked else None,
                **_scores(labels, metric, truth, predicted),
            },
            cost={"seconds": 300.0, "device_seconds": 290.0},
            **more,
        )
        _write(made.path, truth, predicted, flags)
        dev = made.metrics["score"]
        curve = [
            {"epoch": n, "loss": 1 / n, "dev": dev * (1 - 0.5 / n) + 0.01 * self.rng.normal()} for n in range(1, 9)
        ]
        (made.path / "curve.json").write_text(json.dumps(curve))
        return made


def _score(metric: str, truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(metrics.f1_score(truth, predicted, average=metric.removesuffix("_f1"), zero_division=0))


def _scores(labels: Sequence[str], metric: str, truth: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    places = range(len(labels))
    columns = metrics.precision_recall_fscore_support(truth, predicted, labels=places, zero_division=0)
    per_class = {
        label: dict(zip(("precision", "recall", "f1", "support"), map(float, values), strict=True))
        for label, *values in zip(labels, *columns, strict=True)
    }
    for one in per_class.values():
        one["support"] = int(one["support"])
    matrix = metrics.confusion_matrix(truth, predicted, labels=places).tolist()
    return {"score": _score(metric, truth, predicted), "per_class": per_class, "confusion": matrix}


def _write(folder: Path, truth: np.ndarray, predicted: np.ndarray, leaked: np.ndarray) -> None:
    lines = [
        {"id": str(place), "label": int(a), "predicted": int(b), "probabilities": [], "leaked": bool(c)}
        for place, (a, b, c) in enumerate(zip(truth, predicted, leaked, strict=True))
    ]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def fake_study(
    root: Path, recipes: Sequence[str] = tuple(RECIPES), tasks: Sequence[str] = tuple(TASKS), seeds: int = 5
):
    """Makes a study of three tasks, five recipes and five seeds, with a comparison and the similarity of domains."""
    fake = Fake(root)
    dapt = fake.export("cs", 0.8, (2.1, 1.6, 1.2, 1.41), 2.4)
    irrelevant = fake.export("reviews", 0.75, (2.4, 1.9, 1.2, 1.6), 2.7)
    entries = [Entry("dapt", "dapt", {}, finished(dapt)), Entry("not_dapt", "dapt", {}, finished(irrelevant))]
    for task in tasks:
        leaked = 52 if task == "acl_arc" else 0
        record = fake.task(task, leaked)
        tapt = {
            "TAPT": fake.export(f"{task}-tapt", 0.03, (2.3, 1.9, 1.2, 1.24), 2.6),
            "DAPT+TAPT": fake.export(
                f"{task}-dapt-tapt",
                0.03,
                (1.8, 1.5, 1.41, 1.45),
                1.9,
                fake.training(dapt),
                what={"transductive": task == "scierc"},
            ),
        }
        entries += [Entry("tapt", "tapt", {"recipe": name, "task": task}, finished(one)) for name, one in tapt.items()]
        made = {"dapt": dapt, "not": irrelevant}
        for recipe in recipes:
            steps = [made.get(step) or tapt[recipe] for step in RECIPES[recipe]]
            started = {"start.training": fake.training(steps[-1])} if steps else {}
            trained = tuple(step.inputs["training"]["key"] for step in steps)
            for seed in range(seeds):
                accuracy = TASKS[task][2] + GAINS[recipe] * (0.3 if task == "chemprot" else 1)
                odd = {"degenerate": True} if (recipe, task, seed) == ("RoBERTa", "acl_arc", 3) else {}
                run = fake.finetune(recipe, record, seed, accuracy, leaked, started=started, **odd)
                entries.append(
                    Entry(
                        "finetune",
                        "finetune",
                        {"recipe": recipe, "task": task, "seed": str(seed)},
                        finished(run),
                        trained,
                    )
                )
    entries += [
        Entry("evaluate", "evaluate", {}, finished(_compare(fake))),
        Entry("similarity", "similarity", {}, finished(_similar(fake))),
    ]
    missing = ["finetune[RAND-TAPT, acl_arc, 0]", "finetune[RAND-TAPT, acl_arc, 1]"]
    return Study("Adapting to science", "RoBERTa", entries, missing)


def _compare(fake: Fake) -> Record:
    models, domains = ["RoBERTa", "CS", "Reviews"], ["papers", "biomed", "reviews", "general"]
    loss = np.array([[1.63, 1.32, 2.1, 1.19], [1.34, 1.43, 2.78, 1.41], [2.44, 2.23, 1.93, 1.6]])
    measured = {
        "models": models,
        "domains": domains,
        "loss": loss.tolist(),
        "loss_low": (loss - 0.03).tolist(),
        "loss_high": (loss + 0.03).tolist(),
        "change": (loss - loss[0]).tolist(),
        "change_low": (loss - loss[0] - 0.02).tolist(),
        "change_high": (loss - loss[0] + 0.02).tolist(),
        "knn": {"acl_arc": {"RoBERTa": 0.51, "CS": 0.58, "Reviews": 0.47}},
    }
    inputs = {"models.base.losses": fake.record("evaluate", "model-000", {"corpora.domain": fake.corpus("cs")})}
    return fake.record("compare", "models", inputs, metrics=measured)


def _similar(fake: Fake) -> Record:
    domains = ["papers", "biomed", "reviews"]
    overlap = [[1, 0.41, 0.22], [0.41, 1, 0.18], [0.22, 0.18, 1]]
    cross = [[0, 0.9, 2.1], [0.8, 0, 2.4], [2.2, 2.6, 0]]
    measured = {"domains": domains, "overlap": overlap, "cross_loss": cross}
    return fake.record("similarity", "domains", {"corpora.papers": fake.corpus("cs")}, metrics=measured)
