"""How tables are printed."""

from typing import Any


def show(table: Any) -> None:
    """Prints a table of rich's on stderr, 120 wide where that is no terminal; nothing where it has no row."""
    if not table.row_count:
        return
    from rich.console import Console

    Console(stderr=True, width=None if Console(stderr=True).is_terminal else 120).print(table)
