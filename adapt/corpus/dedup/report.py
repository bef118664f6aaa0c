"""The report of stage `dedup`: what was dropped of which source, the largest clusters, and what the bands find."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from adapt.corpus.dedup.buckets import ChunkParts
from adapt.corpus.dedup.minhash import share_probability
from adapt.runner.files import write_atomically

LARGEST = 20
EXAMPLES = 3
SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def write_dedup_report(
    folder: Path,
    names: list[str],
    parts: ChunkParts,
    documents: np.ndarray,
    firsts: np.ndarray,
    leaves: np.ndarray,
    bands: tuple[int, int],
) -> dict[str, Any]:
    """Writes `report.json` and `report.md`.

    Args:
        folder: where.
        names: of the sources.
        parts: all documents.
        documents: those in clusters, in order, int64.
        firsts: the first document of each one's cluster, int64.
        leaves: which of them are left out, bool.
        bands: bands and rows; (0, 0) where only equal texts are duplicates.

    Returns:
        The stage's metrics.
    """
    read = np.bincount(parts.keys[:, 0], np.diff(parts.starts), len(names)).astype(int)
    dropped = np.bincount(parts.sources(documents[leaves]), minlength=len(names))
    metrics = {
        "documents": int(read.sum()),
        "duplicates": int(dropped.sum()),
        "clusters": len(np.unique(firsts)),
        "by_source": {
            name or "corpus": {"documents": int(all_), "duplicates": int(left)}
            for name, all_, left in zip(names, read, dropped, strict=True)
        },
    }
    report = {
        **metrics,
        "largest": _largest(parts, documents, firsts),
        "bands": bands[0],
        "rows": bands[1],
        "candidates": {f"{s:g}": round(share_probability(s, *bands), 4) for s in SIMILARITIES} if bands[0] else {},
    }
    write_atomically(folder / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    write_atomically(folder / "report.md", _text(report))
    return metrics


def _largest(parts: ChunkParts, documents: np.ndarray, firsts: np.ndarray) -> list[dict[str, Any]]:
    kept, sizes = np.unique(firsts, return_counts=True)
    largest = np.argsort(-sizes, kind="stable")[:LARGEST]
    return [
        {
            "documents": int(sizes[cluster]),
            "examples": [parts.excerpt(int(d)) for d in documents[firsts == kept[cluster]][:EXAMPLES]],
        }
        for cluster in largest
    ]


def _text(report: dict[str, Any]) -> str:
    lines = [
        "# Duplicates",
        "",
        f"{report['duplicates']:,} of {report['documents']:,} documents are duplicates, in {report['clusters']:,} "
        "clusters. The first of each cluster is kept.",
        "",
        "| source | documents | duplicates |",
        "|---|---|---|",
        *(f"| {name} | {n['documents']:,} | {n['duplicates']:,} |" for name, n in report["by_source"].items()),
    ]
    if report["bands"]:
        lines += [
            "",
            f"{report['bands']} bands of {report['rows']} rows: probability that two documents are compared, "
            "1 - (1 - s^r)^b.",
            "",
            "| similarity s | " + " | ".join(report["candidates"]) + " |",
            "|---" * (1 + len(report["candidates"])) + "|",
            "| compared | " + " | ".join(f"{p:.3f}" for p in report["candidates"].values()) + " |",
        ]
    lines += ["", "## Largest clusters", ""]
    for cluster in report["largest"]:
        lines.append(f"- {cluster['documents']:,} documents")
        lines += [f"  - {' '.join(example.split())}" for example in cluster["examples"]]
    return "\n".join(lines) + "\n"
