"""Creates searches with synthetic results, for tests of reports."""

import json
from math import log10
from pathlib import Path
from typing import Any

import numpy as np

from adapt.runner.record import Record
from adapt.show.report.study import Entry
from tests.show.report.fake_studies import Fake, finished


def figure(value: float, width: float = 0.0) -> dict[str, float | None]:
    return {"value": value, "low": value - width if width else None, "high": value + width if width else None}


def score_of(rate: float, fraction: float) -> float:
    """Returns a synthetic dev score.

    It is highest at a learning rate of 3e-4, and slightly higher for smaller fractions.
    """
    return 0.72 - 0.08 * (log10(rate) - log10(3e-4)) ** 2 - 0.02 * fraction


def fake_search(root: Path, trials: int = 16, objectives: int = 1, judged: bool = False) -> Entry:
    """Makes a finished TAPT search over the learning rate, the mask fraction and a field whose values are words."""
    fake, generator = Fake(root), np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for number in range(trials + 1):
        rate, fraction = float(10 ** generator.uniform(-5, -2.5)), float(generator.choice([0.15, 0.3, 0.4]))
        values: dict[str, Any] = {
            "training.learning_rate": rate,
            "objective.mask_fraction": fraction,
            "das.normalize": str(generator.choice(["paper", "rank"])),
        }
        values = values if number else {}
        score = score_of(rate if number else 1e-4, fraction if number else 0.15) + generator.normal(0, 0.004)
        loss = 3.0 + 0.25 * log10(rate / 1e-5) if number else 3.2
        figures = {"dev_score": figure(score, 0.01), "losses.general.after": figure(loss, 0.02)}
        failed, steps = number == 4, (90 if number % 3 == 0 else 30) if judged else None
        turns = {"30": score - 0.03, **({"90": score} if steps == 90 else {})} if judged else {}
        trial = _trial(fake, number, steps or 90, rate)
        error = "the workers failed: rank 0: OutOfMemoryError" if failed else ""
        row = {"number": number, "values": values, "key": trial.key, "figures": {} if failed else figures}
        rows.append({**row, "error": error, "steps": steps, "turns": turns})
    names = {"dev_score": "max", "losses.general.after": "min"}
    whole = [row for row in rows if row["figures"] and row["steps"] in (None, 90)]
    best = max(whole, key=lambda row: row["figures"]["dev_score"]["value"])
    metrics = {
        "job": "tapt",
        "objectives": dict([*names.items()][:objectives]),
        "trials": rows,
        "best": best["number"],
        "front": [row["number"] for row in whole if not _beaten(row, whole)] if objectives > 1 else [best["number"]],
        "device_hours": 1.25,
        "stages": 5 * trials + 4,
        "shared": 4 * trials,
        "as_it_is": {"training.learning_rate": 1e-4, "objective.mask_fraction": 0.15, "das.normalize": "paper"},
    }
    record = fake.record("search", "search-acl_arc", metrics=metrics)
    return Entry("search", "tapt", {"task": "acl_arc"}, finished(record))


def _beaten(row: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    score, loss = (row["figures"][name]["value"] for name in ("dev_score", "losses.general.after"))
    return any(
        other["figures"]["dev_score"]["value"] > score and other["figures"]["losses.general.after"]["value"] < loss
        for other in others
    )


def _trial(fake: Fake, number: int, steps: int, rate: float) -> Record:
    training = fake.record("train", f"trial-{number}")
    losses = [8 - 3 * (1 - np.exp(-step * rate * 400 / steps)) for step in range(0, steps, 5)]
    lines = [json.dumps({"step": 5 * place, "loss": loss}) for place, loss in enumerate(losses)]
    (training.path / "metrics.jsonl").write_text("\n".join(lines))
    export = fake.record("export", f"trial-{number}", {"training": training})
    runs = {}
    for seed in range(2):
        run = fake.record("finetune", f"trial-{number}-{seed}")
        curve = [
            {"epoch": epoch, "dev": 0.7 * (1 - np.exp(-epoch * (1 + 200 * rate))) + 0.01 * seed}
            for epoch in range(1, 6)
        ]
        (run.path / "curve.json").write_text(json.dumps(curve))
        runs[f"runs.task.{seed}"] = run
    made = fake.record("trial", f"trial-{number}", {"final": export, **runs})
    made.path.rename(folder := fake.root / "trial" / f"x-{made.key[:16]}")
    assert folder.exists()
    return made


def fake_confirmed(root: Path, search: Record, difference: tuple[float, float, float], seeds: int = 6) -> Entry:
    """Makes the stage that runs the best trial of a search with fresh seeds."""
    value, low, high = difference
    fresh = {
        name: {
            "best": figure(0.7),
            "as_it_is": figure(0.7 - value),
            "difference": {"value": value, "low": low, "high": high},
        }
        for name in ("dev_score", "test_score")
    }
    metrics = {
        "values": {},
        "seeds": list(range(7, 7 + seeds)),
        "fresh": fresh,
        "apparent": 0.04,
        "gained": value,
        "selection": 0.04 - value,
    }
    record = Fake(root).record("confirm", "search", {"search": search}, metrics=metrics)
    return Entry("search", "tapt", {}, finished(record))
