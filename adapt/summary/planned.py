"""What a chain has done, and what it will take."""

from collections.abc import Mapping

from adapt.runner.run import Planned
from adapt.summary.tables import show


def show_plan(planned: list[Planned]) -> None:
    """One row a stage: done or to run, its folder, and what changed against the nearest finished stage."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("stage", "state", "folder", "because"):
        table.add_column(column, overflow="fold")
    for line in planned:
        state = "[green]done[/]" if line.record else "[yellow]run[/]"
        folder = Text(f"{line.folder.parent.name}/{line.folder.name}")  # Text: brackets in it are not rich's markup
        table.add_row(line.stage.kind, state, folder, Text(_because(line)))
    show(table)


def show_forecast(lines: Mapping[str, str]) -> None:
    """What the training will take, a line a figure."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="the training ahead", title_justify="left", show_header=False)
    for name, text in lines.items():
        table.add_row(name, Text(text))
    show(table)


def _because(line: Planned) -> str:
    if line.record:
        return ""
    if not line.nearest:
        return "first of its kind"
    return "\n".join([*line.changed, f"(against {line.nearest.path.name})"])
