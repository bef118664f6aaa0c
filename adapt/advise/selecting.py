"""Which part of a pool to train on for a task: by which selection, how much, and how often.

As in Don't Stop Pretraining, tables 8 and 9: 50 documents for each train example, and some ten passes over them (there
1,100 steps of 256 texts for 25,000 neighbours). Of a pool that is small, less: so that the passes together stay below
half of one pass over all of it, else one could as well train on all.
"""

from dataclasses import dataclass
from math import ceil

from adapt.advise.evidence import Evidence
from adapt.config import Config

PER_EXAMPLE, PASSES = 50, 10
MOST_WORK = 0.5
"""So much of the work of one pass over the pool do all passes over a selection take."""
KIND = "classifier"
"""It takes no model, and two passes over the pool."""


@dataclass(frozen=True)
class ProposedSelection:
    """A part of a pool, and how often it is trained on. None stands for what cannot be known."""

    kind: str
    documents: int | None
    tokens: int | None
    budget: str
    """The option that sets it, as `select.tokens=1000`; empty where one is configured."""
    passes: int = PASSES


def propose(config: Config, evidence: Evidence) -> ProposedSelection | None:
    """What to select; None if there is no pool or no task, or the pool has too little.

    Args:
        config: where `select` has a budget, or a kind other than `random`, that is taken.
        evidence: what is known of pool and tasks.
    """
    select, pool = config.select, evidence.candidates
    if pool is None or not evidence.tasks:
        return None
    kind = KIND if select.kind == "random" else " -> ".join(_names(select.kind))
    examples = sum(task.examples for task in evidence.tasks)
    wanted = select.documents or (select.per_example or PER_EXAMPLE) * examples
    is_given = bool(select.documents or select.per_example or select.tokens)
    if pool.documents is None or pool.tokens is None:
        return ProposedSelection(kind, wanted, None, "" if is_given else f"select.per_example={PER_EXAMPLE}")
    length = pool.tokens / max(pool.documents, 1)
    if select.tokens:
        return ProposedSelection(kind, ceil(select.tokens / length), select.tokens, "")
    if is_given:
        return ProposedSelection(kind, wanted, round(wanted * length), "")
    documents = min(wanted, int(MOST_WORK / PASSES * pool.documents))
    if documents < examples:
        return None
    tokens = round(documents * length)
    return ProposedSelection(kind, documents, tokens, f"select.tokens={tokens}")


def _names(kind: object) -> list[str]:
    """The names of one selection or of a list."""
    entries = kind if isinstance(kind, list) else [kind]
    return [str(next(iter(entry)) if isinstance(entry, dict) else entry) for entry in entries]
