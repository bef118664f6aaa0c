"""What a method has to say of a sequence of domains, for reports."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class NoteTable:
    """Figures for people."""

    title: str
    columns: list[str]
    rows: dict[str, list[str]]
    """Cells by the row's name."""


@dataclass(frozen=True)
class Notes:
    """What a method has to say of a sequence of domains."""

    tables: list[NoteTable] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
