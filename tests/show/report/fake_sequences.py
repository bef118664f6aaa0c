"""Creates sequences of domains with synthetic results, for tests of reports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adapt.show.report.study import Entry, Study
from adapt.statistics.continual_metrics import sequence_figures
from tests.show.report.fake_studies import Fake, finished

ORDERS = {"a": ("cs", "biomed", "news", "reviews"), "b": ("reviews", "news", "biomed", "cs")}
SEEDS = 8
TASKS = {"acl_arc": "cs", "chemprot": "biomed", "rct": "biomed", "hyperpartisan": "news", "helpfulness": "reviews"}
FORGETS = {"NCL": 0.015, "DAS": -0.004, "EWC": 0.013}
"""By how much each later domain lowers the score of a task, keyed by method. Scores are between 0 and 1."""


def sequence(order: Sequence[str], mode: str, seed: int, forgets: float = 0.0, method: str = "plain") -> dict[str, Any]:
    """Returns the metrics that stage `sequence` would write."""
    rng = np.random.default_rng([seed, round(1e4 * (1 + forgets)), len(mode)])
    scores: list[dict[str, list[float]]] = [{}]
    losses: list[dict[str, float]] = [{name: 2.4 + 0.1 * place for place, name in enumerate(order)} | {"general": 1.3}]
    for after in range(1, len(order) + 1):
        seen = {"continual": order[:after], "separate": order[after - 1 : after]}.get(mode, order)
        done = mode != "joint" or after == len(order)
        since = {name: after - 1 - order.index(name) if mode == "continual" else 0 for name in seen}
        scores.append(
            {
                task: [float(0.7 + 0.01 * len(task) - forgets * since[domain] + 0.004 * rng.normal()) for _ in range(3)]
                for task, domain in TASKS.items()
                if domain in since and done
            }
        )
        row = {
            name: float(1.9 + 0.1 * order.index(name) + 4 * forgets * since[name] + 0.01 * rng.normal())
            for name in seen
        }
        losses.append({**row, "general": 1.3 + 0.05 * after * (1 + 20 * forgets)} if done else {})
    left = {
        f"after {after} domains": [
            f"{base**after:.2f}\n{base**after:.2f} to {(base + 0.1) ** after:.2f}" for base in (0.6, 0.75)
        ]
        for after in range(5)
    }
    table = {"title": "remaining plasticity", "columns": ["attention heads", "feed-forward"], "rows": left}
    made = {
        "order": list(order),
        "mode": mode,
        "method": method,
        "seed": seed,
        "scores": {
            "columns": {task: list(order).index(domain) for task, domain in TASKS.items() if domain in order},
            "metric": {task: "micro_f1" if task in ("chemprot", "rct") else "macro_f1" for task in TASKS},
            "rows": scores,
        },
        "losses": {"columns": {name: place for place, name in enumerate(order)} | {"general": None}, "rows": losses},
        "tables": [table] if method == "das" else [],
        "warnings": ["after reviews, 8% of what attention heads learn is let through"] if method == "das" else [],
        "model": "/runs/export/model",
        "models": dict.fromkeys(order, "/runs/export/model"),
    }
    return made | sequence_figures(made["scores"], made["losses"], mode)


def entry(fake: Fake, values: Mapping[str, str], metrics: Mapping[str, Any]) -> Entry:
    record = fake.record("sequence", " ".join(values.values()), metrics=metrics)
    return Entry("sequence", "das", values, finished(record))


def fake_sequences(root: Path, orders: Sequence[str] = tuple(ORDERS), seeds: int = SEEDS) -> Study:
    """Makes a study of three methods, separate models and a joint model, with one sequence per order and seed."""
    fake = Fake(root)
    entries = [
        entry(
            fake,
            {"method": name, "order": order, "seed": str(seed)},
            sequence(ORDERS[order], "continual", seed, forgets, "das" if name == "DAS" else "plain"),
        )
        for name, forgets in FORGETS.items()
        for order in orders
        for seed in range(seeds)
    ]
    entries += [
        entry(fake, {"method": name, "order": order, "seed": str(seed)}, sequence(ORDERS[order], mode, seed))
        for name, mode in {"ONE": "separate", "JOINT": "joint"}.items()
        for order in orders
        for seed in range(seeds)
    ]
    return Study("Domains in turn", "NCL", entries, models=["FacebookAI/roberta-base"])
