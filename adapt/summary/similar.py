"""The result of jobs/similarity.py."""

from adapt.console import log
from adapt.runner.record import Record
from adapt.summary.tables import show


def show_similarity(record: Record) -> None:
    """A table for each matrix over the domains, and where the picture is."""
    from rich.table import Table

    titles = {
        "overlap": "share of the 10,000 most frequent words that two domains have in common",
        "jaccard": "Jaccard index of all their words",
        "cross_loss": "cross loss of a unigram model, nats a word (row: model, column: text)",
        "model_loss": "held-out loss, nats a predicted token (row: model, column: text)",
    }
    domains = record.metrics["domains"]
    for name, title in titles.items():
        if record.metrics.get(name):
            log(title)
            table = Table()
            for column in ("", *domains):
                table.add_column(column)
            for domain, values in zip(domains, record.metrics[name], strict=True):
                table.add_row(domain, *(f"{value:.3f}" for value in values))
            show(table)
    log(f"picture: {record.path / 'similarity.png'}")
