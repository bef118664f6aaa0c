"""What a demonstration has seen: said as it comes, and once more at its end."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from adapt.console import duration, log
from cluster.here.nodes import Nodes, nodes


@dataclass
class Story:
    """Sentences, with the time at which each became true."""

    began: float = field(default_factory=time.monotonic)
    told: list[str] = field(default_factory=list)

    def tell(self, sentence: str) -> None:
        """Says what has been seen."""
        self.told.append(f"after {duration(time.monotonic() - self.began):>12}: {sentence}")
        log(f"== {sentence}")

    def retell(self) -> None:
        """Says all of it again."""
        log("What was seen:")
        for line in self.told:
            log(f"  {line}")


@contextmanager
def told_cluster(story: Story, folder: Path, further: Mapping[str, str] | None = None) -> Iterator[Nodes]:
    """A cluster that takes jobs, and whose end is told too.

    Args:
        story: of what is seen.
        folder: for the token.
        further: what else the environment of all nodes says.
    """
    with nodes(folder, with_jobs=True, further=further) as cluster:
        yield cluster
    left = cluster.processes()
    story.tell(f"the cluster is down; {left or 'none'} of its processes {'are' if left > 1 else 'is'} left")
