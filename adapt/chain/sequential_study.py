"""Follows a sequential study: reads which comparisons have ended, builds the next round, and forecasts later rounds.

The study analyzes its results after each round of seeds. Only the records of these analyses (looks) decide what runs
next, so a killed study continues where it stopped. Each run has the same key as in a chain that lists all seeds from
the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import TYPE_CHECKING, Any

from adapt.chain.chain_file import ChainFile
from adapt.chain.chain_nodes import Node, expand_chain
from adapt.chain.chain_stages import Chain, build_chain
from adapt.chain.look_stage import Goal, SeedLook
from adapt.config import Config
from adapt.runner import Finished, Stage, Store
from adapt.runner.stage import everything
from adapt.show.blocks import NONE, worded_interval
from adapt.show.progress.chain_now import ComparisonNow, CostForecast, StudyNow
from adapt.show.report.study import method_name, row_names
from adapt.stage.budget import hours_of
from adapt.stage.domain_sequence import Sequence as DomainSequence
from adapt.stage.train import Train
from adapt.statistics.seeds import Ending, Looked, Margin, SeedRounds, endings
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from adapt.statistics.looks import Outlook


LOOKS = "look"
"""Prefix of the label of each look. Labels of other stages begin with the name of an entry in the chain file."""
MANY = 10**9
"""More seeds than any study has. Passing this number of seeds selects the runs of all seeds."""
VERDICTS = {"better": "better", "worse": "worse", "equal": "no difference that matters", "open": "undecided"}


@dataclass(frozen=True)
class ComparedRow:
    """Runs that are compared by one metric: the runs of all recipes on one task, or the sequences of all methods."""

    key: tuple[str, ...]
    """Row of the compared runs, as in `_arm`."""
    name: str
    figure: str
    """Metric by which sequences are compared, such as `average`. Empty if scores of fine-tuning runs are compared."""
    arms: Mapping[str, Mapping[str, Sequence[Goal]]]
    """Runs keyed by recipe and seed. Sequences have one run per seed and order of domains."""

    def runs(self, recipes: Sequence[str], seeds: int) -> list[Goal]:
        """Returns the runs of the given recipes with the first `seeds` seeds."""
        return [goal for recipe in recipes for goals in list(self.arms[recipe].values())[:seeds] for goal in goals]


@dataclass(frozen=True)
class FollowedRow:
    """Comparisons of several recipes with one baseline on one task or metric, and their interim analyses (looks)."""

    row: ComparedRow
    baseline: str
    looks: Sequence[SeedLook]
    """All finished looks, and the next look if a comparison has not ended."""
    finished: Sequence[Looked]
    """Results of the finished looks."""
    used: Sequence[Goal]
    """Runs that the looks read."""

    @property
    def open(self) -> list[str]:
        """Names of the recipes whose comparison has not ended."""
        return self.finished[-1].open if self.finished else [name for name in self.row.arms if name != self.baseline]

    @property
    def next_look(self) -> int | None:
        """Number of the next look, or None if there is no further look."""
        return len(self.looks) if len(self.looks) > len(self.finished) else None

    def up_to(self, seeds: Mapping[str, int]) -> list[Goal]:
        """Returns the runs with the first seeds, for the baseline and for some recipes.

        Args:
            seeds: number of seeds, keyed by recipe. The baseline gets the largest of these numbers.
        """
        most = {self.baseline: max(seeds.values(), default=0), **seeds}
        return [goal for recipe, number in most.items() for goal in self.row.runs([recipe], number)]


def study_nodes(source: ChainFile, only: Mapping[str, list[str]] | None = None) -> list[Node]:
    """Returns the nodes of a chain. In a sequential study, fine-tuning nodes have all seeds that the study may use."""
    nodes = expand_chain(source, only)
    if source.rounds is None:
        return nodes
    if only:
        _refuse_partial(nodes, expand_chain(source))
    return [_with_seeds(node, source.rounds) if node.job.parts and not node.is_search else node for node in nodes]


def _with_seeds(node: Node, rounds: SeedRounds) -> Node:
    """Returns the node with its list `finetune.seeds` extended to the study's maximum number of seeds.

    A node with a member of the set `seed` is returned unchanged, because it has one seed (see `build_chain`).
    """
    if "seed" in node.values:
        return node
    seeds = node.config.finetune.seeds
    following = range(max(seeds) + 1, max(seeds) + 1 + rounds.max_seeds)
    chosen = [*seeds, *following][: rounds.max_seeds]

    def configured(values: Mapping[str, Any]) -> Config:
        return node.configured({"finetune.seeds": chosen, **values})

    return replace(node, config=configured({}), configured=configured)


def _arm(node: Node) -> tuple[tuple[str, ...], str] | None:
    """Returns the row in which a node's runs are compared (a task, or all sequences), and the runs' recipe.

    Returns None if the node is not compared.
    """
    if node.job.name == "sequence" and not node.is_search:
        return (), method_name(node.name, node.values)
    if node.job.parts and not node.is_search:
        recipe = node.values.get("recipe", node.name)
        return row_names(node.name, node.values, node.config.task.name, "recipe" in node.values), recipe
    return None


def _refuse_partial(nodes: Sequence[Node], all_nodes: Sequence[Node]) -> None:
    """Raises ConfigError if `nodes` has only some of the recipes that a study compares on the same task."""
    rows: dict[tuple[str, ...], set[str]] = {}
    for node in nodes:
        if arm := _arm(node):
            rows.setdefault(arm[0], set()).add(arm[1])
    for node in all_nodes:
        if (arm := _arm(node)) and arm[0] in rows and arm[1] not in rows[arm[0]]:
            raise ConfigError(
                f"--only leaves out {node.label}, but a sequential study compares all recipes of a task",
                "select tasks or entries of `stages` with --only, or remove --only",
            )


def built_chain(nodes: Sequence[Node], baseline: str, margin: Margin, rounds: SeedRounds | None) -> Chain:
    """Builds the stages of a chain. In a sequential study, these are the stages of all rounds up to the next one.

    Args:
        nodes: the nodes, from `study_nodes`.
        baseline: name of the recipe with which the other recipes are compared.
        margin: largest differences that count as negligible.
        rounds: the rounds of seeds of a sequential study, or None for other chains.
    """
    chain = build_chain(nodes)
    if rounds is None:
        return chain
    rows = list(compared_rows(chain.goals, rounds))
    unknown = {arm[0] for node in nodes if node.label in chain.later and (arm := _arm(node))}
    followed = [_followed(row, baseline, margin, rounds, chain.store) for row in rows if row.key not in unknown]
    if unknown:  # recipes of these rows need a search that has not finished: there are no new looks at any row yet
        finished = [look for each in followed for look in each.looks[: len(each.finished)]]
        runs = [goal for row in rows for goal in row.runs(list(row.arms), rounds.first_seeds)]
        runs += [goal for look in finished for goal in look.runs.values()]
        goals = [*_active(chain.goals, rows, runs), *(_goal(look, chain.goals[0]) for look in finished)]
        return replace(chain, goals=goals, sequential=StudyNow(len(rounds.seeds), rounds.seeds, 1))
    runs = [goal for each in followed for goal in each.used]
    looks = [_goal(look, chain.goals[0]) for each in followed for look in each.looks]
    goals = [*_active(chain.goals, rows, runs), *looks]
    return replace(chain, goals=goals, sequential=_study_now(followed, goals, rounds, chain))


def looks_without_differences(nodes: Sequence[Node], baseline: str, rounds: SeedRounds) -> list[str]:
    """Says which looks have so few seeds that no p can be significant. These looks can only find no difference.

    Args:
        nodes: the nodes, from `study_nodes`.
        baseline: name of the recipe with which the other recipes are compared.
        rounds: the rounds of seeds.
    """
    from adapt.statistics.looks import corrected_levels_at, least_p_of_seeds

    arms: dict[tuple[str, ...], set[str]] = {}
    for node in nodes:
        if (arm := _arm(node)) and arm[1] != baseline:
            arms.setdefault(arm[0], set()).add(arm[1])
    sentences = []
    for is_paired, recipes in sorted({(not row, len(others)) for row, others in arms.items()}):
        levels = corrected_levels_at(rounds, recipes)
        for look, (seeds, level) in enumerate(zip(rounds.seeds, levels, strict=True), 1):
            least = least_p_of_seeds(seeds, is_paired)
            if least >= level:
                sentences.append(
                    f"Look {look} cannot find that a recipe is better or worse: with {seeds}"
                    f" {'pairs of seeds' if is_paired else 'seeds per side'}, p is at least {least:.2g}, and must be"
                    f" below {level:.1g} for {'1 recipe' if recipes == 1 else f'{recipes} recipes'}. Raise"
                    f" {'sequential.first_seeds' if look < len(levels) else 'sequential.max_seeds'}, if it should."
                )
    return list(dict.fromkeys(sentences))


def compared_rows(goals: Sequence[Goal], rounds: SeedRounds) -> Iterator[ComparedRow]:
    """Groups the runs of a chain by compared task or metric, by recipe and by seed."""
    tuned = [goal for goal in goals if goal.stage.kind == "finetune"]
    has_several_entries = len({goal.name for goal in tuned}) > 1
    by_row: dict[tuple[tuple[str, ...], str], dict[str, dict[str, list[Goal]]]] = {}
    for goal in tuned:
        has_recipe = "recipe" in goal.values
        key, named = (
            row_names(goal.name, goal.values, goal.config.task.name, with_entry)
            for with_entry in (has_recipe, has_several_entries and has_recipe)
        )
        recipe = goal.values.get("recipe", goal.name)
        arms = by_row.setdefault((key, " · ".join(named)), {})
        arms.setdefault(recipe, {}).setdefault(goal.values["seed"], []).append(goal)
    sequences: dict[str, dict[str, list[Goal]]] = {}
    for goal in goals:
        if goal.stage.kind == "sequence":
            method = method_name(goal.name, goal.values)
            sequences.setdefault(method, {}).setdefault(str(goal.config.seed), []).append(goal)
    rows = [ComparedRow(key, name, "", arms) for (key, name), arms in by_row.items()]
    rows += [ComparedRow((), figure, figure, sequences) for figure in rounds.figures if sequences]
    for compared in rows:
        _check_figure(compared)
        for recipe, seeds in compared.arms.items():
            if len(seeds) < rounds.max_seeds:
                raise ConfigError(
                    f"{recipe} has {len(seeds)} seeds on {compared.name}, but sequential.max_seeds is"
                    f" {rounds.max_seeds}",
                    f'list {rounds.max_seeds} seeds in the set `seed`, with `seed: "{{seed}}"` and'
                    ' `finetune.seeds: ["{seed}"]` in the entries, or lower sequential.max_seeds',
                )
        yield compared


def _check_figure(row: ComparedRow) -> None:
    """Raises ConfigError if the sequences of a row do not measure the metric that the study compares."""
    goals = [goal for seeds in row.arms.values() for goals in seeds.values() for goal in goals]
    needs_tasks = row.figure and "loss" not in row.figure and row.figure != "general_change"
    for goal in goals if row.figure else ():
        if needs_tasks and isinstance(goal.stage, DomainSequence) and not goal.stage.tasks:
            raise ConfigError(
                f"sequential.figures has {row.figure}, which needs scores on tasks, but {goal.label} has no tasks",
                "add `tasks` to the sequences, or use metrics of losses, such as loss_average",
            )
        if row.figure == "general_change" and not goal.config.evaluation.general_paths:
            raise ConfigError(
                f"sequential.figures has general_change, but {goal.label} has no general text",
                "set evaluation.general_paths, or remove general_change from sequential.figures",
            )


def _followed(row: ComparedRow, baseline: str, margin: Margin, rounds: SeedRounds, store: Store) -> FollowedRow:
    """Reads the finished looks of a row of comparisons, and adds the next look if a comparison has not ended."""
    if baseline not in row.arms or len(row.arms) < 2:
        raise ConfigError(
            f"a sequential study compares recipes with the baseline {baseline}, but {row.name} only has these recipes:"
            f" {', '.join(row.arms)}",
            "name the baseline in the chain file (`baseline:`), and run the baseline and at least one other recipe on"
            " every task",
        )
    looks: list[SeedLook] = []
    finished: list[Looked] = []
    used: dict[str, Goal] = {}
    others = [recipe for recipe in row.arms if recipe != baseline]
    is_open = others
    for number, seeds in enumerate(rounds.seeds, 1):
        runs = {goal.label: goal for goal in row.runs([baseline, *is_open], seeds)}
        used |= runs
        look = SeedLook(
            name=f"{row.name}-{number}".replace("/", "_"),  # members may be models, such as FacebookAI/roberta-base
            runs=runs,
            previous=looks[-1] if looks else None,
            row=row.name,
            figure=row.figure,
            look=number,
            rounds=rounds,
            margin=margin,
            baseline=baseline,
            recipes=len(others),
        )
        looks.append(look)
        record = store.record_of(look)
        if record is None:
            break
        finished.append(Finished.of(look, record).result)
        is_open = finished[-1].open
        if not is_open:
            break
    return FollowedRow(row, baseline, looks, finished, list(used.values()))


def _goal(look: SeedLook, like: Goal) -> Goal:
    return Goal(LOOKS, like.job, {"task": look.row, "look": str(look.look)}, look, like.config)


def _active(goals: Sequence[Goal], rows: Sequence[ComparedRow], used: Sequence[Goal]) -> list[Goal]:
    """Returns the goals of a chain, without runs that no look reads yet and without goals that need such runs."""
    compared = [goal for row in rows for goal in row.runs(list(row.arms), MANY)]
    now = {stage.key for stage in everything(goal.stage for goal in used)}
    later = {stage.key for stage in everything(goal.stage for goal in compared)} - now
    return [goal for goal in goals if not any(stage.key in later for stage in everything([goal.stage]))]


def _study_now(followed: Sequence[FollowedRow], goals: Sequence[Goal], rounds: SeedRounds, chain: Chain) -> StudyNow:
    """Describes the state of a study, with a forecast of its remaining cost."""
    looks = [looked for each in followed for looked in each.finished]
    latest, comparisons, expected = endings(looks), [], list[Goal]()
    largest, is_forecast = list(goals), True
    for each in followed:
        seeds: dict[str, int] = {}
        for recipe in each.row.arms:
            if recipe == each.baseline:
                continue
            ending = latest.get((each.row.name, each.row.figure, recipe))
            outlook = outlook_of(ending, rounds) if ending and recipe in each.open and not ending.is_last else None
            is_forecast = is_forecast and ending is not None
            seeds |= {recipe: ceil(outlook.seeds)} if outlook else {}
            comparisons.append(_comparison_now(f"{each.row.name}, {recipe}", ending, each.row.figure, outlook))
        expected += each.up_to(seeds)
        if each.next_look is not None:
            largest += each.up_to(dict.fromkeys(each.open, rounds.max_seeds))
    following = [each.next_look for each in followed if each.next_look is not None]
    now = StudyNow(len(rounds.seeds), rounds.seeds, min(following, default=None), comparisons)
    if not following:
        return now
    costs = RemainingTime.of(largest, chain.store, chain.resources.price_per_device_hour)
    unknown = CostForecast("expected", None, None, None)
    ahead = [
        costs.ahead("smallest", goals),
        costs.ahead("expected", [*goals, *expected]) if is_forecast else unknown,
        costs.ahead("largest", largest),
    ]
    return replace(now, ahead=ahead)


def _comparison_now(name: str, ending: Ending | None, figure: str, outlook: Outlook | None) -> ComparisonNow:
    if ending is None:
        return ComparisonNow(name, "not looked at yet", NONE, 0, NONE, NONE)
    seen, is_open = ending.seen, ending.seen.conclusion == "open"
    is_loss = "loss" in figure or figure == "general_change"

    def change(value: float) -> str:
        return f"{value:+.3f}" if is_loss else f"{100 * value:+.1f}"

    said = "" if outlook is None else f"about {outlook.seeds:.0f} seeds; a verdict is {outlook.ends:.0%} likely"
    return ComparisonNow(
        name=name,
        verdict=VERDICTS[seen.conclusion],
        look=f"{ending.looked.look} of {len(ending.looked.seeds)}",
        seeds=ending.seeds,
        difference=change(seen.difference),
        interval=worded_interval(seen.low, seen.high, change) or NONE,
        outlook=said,
        is_open=is_open,
    )


Like = tuple[str, str]
"""Identifies stages that take about the same time, by the kind of stage and the key of its task."""


def _like(stage: Stage[Any]) -> Like:
    task = getattr(stage, "task", None)
    return stage.kind, task.key if isinstance(task, Stage) else ""


@dataclass(frozen=True)
class RemainingTime:
    """The device time of the unfinished stages of a study."""

    hours: Mapping[str, float | None]
    """Device-hours of each unfinished stage that takes device time, keyed by the stage's key. None if unknown."""
    price: float | None
    """Price of a device per hour."""

    @classmethod
    def of(cls, goals: Sequence[Goal], store: Store, price: float | None) -> RemainingTime:
        """Forecasts the device time of the unfinished stages that goals depend on.

        A training stage computes its own forecast. For any other stage, the forecast is the mean time of the finished
        stages with the same kind and task or, if there are none, of those with the same kind.
        """
        took: dict[Like, list[float]] = {}
        waiting: list[Stage[Any]] = []
        for stage in everything(goal.stage for goal in goals):
            if stage.device_time != "own":
                continue
            record = store.record_of(stage)
            if record is None:
                waiting.append(stage)
            elif (hours := record.cost.get("device_hours")) is not None:
                for like in {_like(stage), (stage.kind, "")}:
                    took.setdefault(like, []).append(float(hours))
        means = {like: fmean(hours) for like, hours in took.items()}
        return cls(
            {
                stage.key: hours_of(stage, store)
                if isinstance(stage, Train)
                else means.get(_like(stage), means.get((stage.kind, "")))
                for stage in waiting
            },
            price,
        )

    def ahead(self, name: str, goals: Sequence[Goal]) -> CostForecast:
        """Adds up the forecasts of the unfinished stages that some goals depend on."""
        keys = [stage.key for stage in everything(goal.stage for goal in goals) if stage.key in self.hours]
        known = [hours for key in keys if (hours := self.hours[key]) is not None]
        total = sum(known) if known or not keys else None
        cost = None if total is None or self.price is None else total * self.price
        return CostForecast(name, len(keys), total, cost, len(keys) - len(known))


def outlook_of(ending: Ending, rounds: SeedRounds) -> Outlook:
    """Forecasts when an unfinished comparison will end."""
    from adapt.statistics.looks import outlook

    looked = ending.looked
    tests = looked.recipes - looked.significant, looked.recipes - looked.equal
    return outlook(ending.seen, rounds, looked.look, looked.margin, *tests)
