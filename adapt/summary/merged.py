"""The result of jobs/merge.py."""

from adapt.console import log
from adapt.runner.record import Record


def show_merged(record: Record) -> None:
    """How the models were made, and where each one is."""
    metrics = record.metrics
    weights = ", ".join(f"{weight:.4g}" for weight in metrics["weights"])
    parts = (
        f"{metrics['kind']} of {metrics['tensors']} tensors",
        f"weights {weights}" if weights else "",
        f"density {metrics['density']:g}" if metrics["density"] is not None else "",
        f"{new:,} tokens that the base has no rows for" if (new := metrics.get("new_tokens")) else "",
    )
    log(", ".join(part for part in parts if part))
    for share, folder in metrics["shares"].items():
        log(f"share {share}: {record.path / folder}")
