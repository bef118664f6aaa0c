"""The domains of a sequence: their names, their order, and the tasks that belong to them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from adapt.config import Config, TaskConfig
from adapt.corpus.sources import sources_of
from adapt.errors import ConfigError
from adapt.parse.keys import unknown
from adapt.parse.values import check_several
from adapt.runner import Stage
from adapt.runner.files import write_atomically

RESERVED = {"general", "training"}
"""What else is measured, or read, beside domains."""


def domain_of(task: TaskConfig) -> str:
    """The source that a task belongs to."""
    return task.domain or task.name


def check_domains(config: Config) -> list[str]:
    """The names of the domains, in the order in which they are learnt.

    Raises:
        ConfigError: there are no sources, one is unknown or comes twice, or a task belongs to none of them.
    """
    sources = dict(sources_of(config.corpus))
    check_several(config.corpus)
    if config.sequence.mode != "continual" and config.method.kind != "plain":
        raise ConfigError(
            f"sequence.mode is {config.sequence.mode}, which learns nothing after another, and method.kind is"
            f" {config.method.kind}",
            "set method.kind to plain: there is nothing that could be forgotten",
        )
    if config.corpus.streaming:
        raise ConfigError("corpus.streaming is set, but importance is measured on prepared text", "remove it")
    for name in RESERVED & set(sources):
        raise ConfigError(f"corpus.sources: a domain cannot be called {name!r}", "give it another name")
    order = config.sequence.order or list(sources)
    for name in order:
        if name not in sources:
            raise unknown(f"{name} in sequence.order", name, set(sources))
        if order.count(name) > 1:
            raise ConfigError(
                f"sequence.order names {name!r} twice",
                "name each domain once; to train on one for longer, raise training.max_steps",
            )
    for task in ([config.task] if config.task.train else []) + config.tasks:
        if domain_of(task) not in sources:
            raise ConfigError(
                f"task {task.name}: {domain_of(task)!r} is no source of the corpus ({', '.join(sources)})",
                "name the source that it belongs to as the task's `domain`",
            )
    return order


def check_distinct(texts: Mapping[str, Stage]) -> None:
    """Refuses two names for one text, which would be one domain learnt twice.

    Raises:
        ConfigError: names them.
    """
    known: dict[tuple[str, str], str] = {}
    for name, text in texts.items():
        other = known.setdefault((text.inputs["manifest"].key, repr(text.what["corpus"])), name)
        if other != name:
            raise ConfigError(
                f"corpus.sources: {other} and {name} read the same text",
                "list a domain once, or correct the paths of one of them",
            )


@dataclass(frozen=True)
class Noted:
    """What a sequence of this name has begun to learn, in a file, so that it goes on and does not start anew unasked.

    Args:
        file: where that is noted.
        domains: name of each domain and key of its prepared text, in the order of now.
    """

    file: Path
    domains: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, root: Path, name: str, texts: Mapping[str, Stage]) -> "Noted":
        """Of the sequence of a name below a root."""
        domains = tuple((domain, text.key) for domain, text in texts.items())
        return cls(root / "sequence" / f"{name}.order.json", domains)

    def check(self) -> None:
        """Refuses a sequence that is changed before its end.

        Raises:
            ConfigError: says where, and what to do.
        """
        for number, (new, old) in enumerate(zip(self.domains, self._known(), strict=False), start=1):
            if new[1] == old[1]:
                continue
            what, fix = f"domain {number} was {old[0]} and is now {new[0]}", "put new domains at the end"
            if new[0] == old[0]:
                what = f"the text of domain {number}, {new[0]}, or how it is read or decontaminated, has changed"
                fix = "undo that (evaluation sets of a new domain belong into its source's own `decontaminate`)"
            raise ConfigError(
                f"sequence {self.file.name.removesuffix('.order.json')}: {what}; all that was learnt from there on"
                " would be learnt anew",
                f"{fix}, or give it another name (--name; in a chain file, that of the chain):"
                " what both share is not redone",
            )

    def first(self, number: int) -> "Noted":
        """So many of its domains."""
        return replace(self, domains=self.domains[:number])

    def save(self) -> None:
        """Notes it, unless more is known already."""
        if len(self._known()) < len(self.domains):
            write_atomically(self.file, json.dumps(self.domains))

    def _known(self) -> list[tuple[str, str]]:
        try:
            return [(name, key) for name, key in json.loads(self.file.read_text())]
        except (OSError, ValueError):
            return []  # nothing was begun; a broken note is no note
