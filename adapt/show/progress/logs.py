"""What the stages of a chain have said."""

import sys
from collections.abc import Sequence

from adapt.console import logs_json
from adapt.errors import ConfigError
from adapt.nearest import nearest
from adapt.runner.reach import everything
from adapt.runner.stage_log import logged_lines
from adapt.runner.store import Store
from adapt.show.progress.chain import ShownGoal
from adapt.streams import is_unread


def show_logs(goals: Sequence[ShownGoal], store: Store, wanted: str | None) -> int:
    """Prints the logs of some stages on stderr, in the order of time.

    Args:
        goals: of the chain.
        store: of the chain.
        wanted: the label or entry of a goal, whose stages are meant with all that they need; the kind or the folder of
            stages; None for all.

    Returns:
        The number of lines.

    Raises:
        ConfigError: nothing is called so; names the nearest.
    """
    import json

    everywhere = everything(goal.stage for goal in goals)
    folders = {stage.key: store.folder(stage.kind, stage.name, stage.key) for stage in everywhere}
    of_goals = everything(goal.stage for goal in goals if wanted in (None, goal.label, goal.name))
    named = [stage for stage in everywhere if wanted in (stage.kind, f"{stage.kind}/{folders[stage.key].name}")]
    chosen = of_goals or named
    if not chosen:
        known = {goal.label for goal in goals} | {stage.kind for stage in everywhere}
        raise ConfigError(f"no stage is called {wanted}", nearest(str(wanted), known))
    lines = [line for stage in chosen for line in logged_lines(folders[stage.key])]
    lines.sort(key=lambda line: str(line.get("time", "")))
    for line in lines:
        plain = f"{str(line.get('time', ''))[:19]}  {line.get('stage', '')}  {line.get('message', '')}"
        if is_unread():  # such as by `| head`
            break
        sys.stderr.write(f"{json.dumps(line) if logs_json() else plain}\n")
    return len(lines)
