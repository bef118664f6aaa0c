"""Adds up the rules' votes for and against each recipe, and orders the recipes by votes and cost.

`adapt.advise.findings` has the rules.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from adapt.advise.evidence import (
    AS_IT_IS,
    BOTH,
    DAPT,
    SELECTED,
    TAPT,
    CostAhead,
    Evidence,
    is_limited,
    millions,
    propose,
)
from adapt.advise.findings import RULES, Case, Checked, Strength
from adapt.advise.regime import Recommendation, Regime
from adapt.config.job_config import TAPT_LENGTH
from adapt.runner.record import Record
from adapt.show.blocks import Block, Cell, Table, TextBlock, summary
from adapt.terminal.console import duration

VOTES: dict[Strength, int] = {"strong": 3, "moderate": 2, "weak": 1}
WITHIN, ABOVE, UNKNOWN = "within", "above", "not known"


@dataclass(frozen=True)
class Recipe:
    """A recipe that can be run, with its votes, its cost and its command."""

    name: str
    votes: int
    """Votes of the rules for the recipe minus votes of the rules against it. A strong rule has 3 votes, a moderate rule
    2, and a weak rule 1."""
    cost: CostAhead
    budget: str
    """`within` or `above`: whether the recipe's device-hours are at most advice.budget_device_hours. `not known` if the
    device-hours are not known."""
    command: str
    """Command that runs the recipe's first job. The first job of DAPT+TAPT is DAPT."""

    def cells(self) -> list[str]:
        """Formats the recipe's name, votes and costs as a row of the table of recipes."""
        hours, flops, price = self.cost.device_hours, self.cost.flops, self.cost.price
        budget = {WITHIN: "", ABOVE: " (above budget)", UNKNOWN: " (cost not known)"}[self.budget]
        return [
            self.name + budget,
            f"{self.votes:+d}",
            millions(self.cost.tokens, "M"),
            "not known" if flops is None else f"{flops:.1e}",
            "not known" if hours is None else f"{hours:.3g} device-hours ({duration(hours * 3600)})",
            *([] if price is None else [f"{price:,.2f}"]),
        ]


@dataclass(frozen=True)
class Remark:
    """A rule whose condition is met, with its reason and its votes for and against recipes."""

    rule: str
    strength: Strength
    speaks_for: tuple[str, ...]
    speaks_against: tuple[str, ...]
    reason: str
    source: str
    checked: Checked
    """Whether the rule held in our own replication; None if we have not replicated the rule. A rule that did not hold
    has no votes."""

    def cells(self) -> list[Cell | str]:
        """Formats the rule as a row of the table: its votes for and against recipes, its reason, and its source."""
        sides = [f"for {' and '.join(self.speaks_for)}"] if self.speaks_for else []
        sides += [f"against {' and '.join(self.speaks_against)}"] if self.speaks_against else []
        checked = f"in our replication: {self.checked}" if self.checked else ""
        return [f"{self.strength}, {', '.join(sides)}" if sides else "note", self.reason, Cell(self.source, checked)]


@dataclass(frozen=True)
class Advice:
    """Recipes in the order in which to try them. Recipes within the budget come before recipes above the budget."""

    recipes: list[Recipe]
    remarks: list[Remark]
    rate_from: str = ""
    """Text that says where the assumed device speed comes from. Device-hours are computed with this speed."""
    refusal: str = ""
    """Message of the error that training with this configuration would raise; empty if there would be no error."""
    evidence: Evidence | None = None
    """The evidence that the advice is based on."""
    regime: Regime | None = None
    """Size of DAPT's text relative to the size of the model. None if no corpus is configured, or if a size is not
    known."""
    recommendations: list[Recommendation] = field(default_factory=list)
    """Recommendations of training settings that follow from the regime."""

    def blocks(self, record: Record) -> list[Block]:
        """Returns the recommendation, the evidence, the rules, the recipes with costs, and the first command."""
        first = self.recipes[0]
        lines = [f"With this configuration, training would stop with an error: {self.refusal}"] if self.refusal else []
        lines += [f"Device-hours assume this speed: {self.rate_from}."] if self.rate_from else []
        if first.budget == ABOVE:
            lines.append(
                "Every recipe takes more than advice.budget_device_hours. If you raise the budget, try the recipe below"
                " first."
            )
        lines.append(f"Run first ({first.name}): {first.command}")
        if first.name == BOTH:
            lines.append(
                "Then run dontstop tapt with the same options, and with --model.path set to the model that dontstop"
                " dapt wrote."
            )
        remarks = Table(
            ["votes", "reason", "source"],
            [remark.cells() for remark in self.remarks],
            "Rules that apply",
            words=True,
        )
        seen = self.evidence.blocks(record) if self.evidence else []
        regime = self.regime.shown(self.recommendations) if self.regime else []
        return [*summary(self._sentence()), *seen, *regime, remarks, self._recipes(), *map(TextBlock, lines)]

    def _sentence(self) -> str:
        """Returns the sentence that recommends the first recipe, with its votes and its device-hours."""
        first, hours = self.recipes[0], self.recipes[0].cost.device_hours
        votes = f"{first.votes:+d} vote{'' if abs(first.votes) == 1 else 's'}"
        cost = "" if hours is None else f" and takes about {hours:.3g} device-hours"
        if len(self.recipes) == 1:
            return f"Try {first.name}: it is the only recipe for this configuration, and has {votes}{cost}."
        return f"Try {first.name} first: it ranks highest of {len(self.recipes)} recipes with {votes}{cost}."

    def _recipes(self) -> Table:
        is_priced = any(recipe.cost.price is not None for recipe in self.recipes)
        header = ["rank", "recipe", "votes", "training tokens", "FLOPs", "time", *(["cost"] if is_priced else [])]
        rows = [[f"{number}", *recipe.cells()] for number, recipe in enumerate(self.recipes, start=1)]
        note = (
            "A strong rule for a recipe adds 3 votes, a moderate rule 2, a weak rule 1; a rule against it subtracts as"
            " many. Costs are estimates. DSP: Don't Stop Pretraining (arXiv 2004.10964), with test scores of"
            " RoBERTa-base."
        )
        return Table(header, rows, "Recipes in the order in which to try them", note)


def recommend(case: Case, arguments: Sequence[str]) -> Advice:
    """Orders the recipes by votes. If two recipes have equal votes, the cheaper recipe comes first.

    Args:
        case: configuration, evidence and costs.
        arguments: arguments of this command, which are repeated in the recommended commands.
    """
    remarks = []
    for rule in RULES:
        if finding := rule.judge(case):
            sides = finding.speaks_for, finding.speaks_against
            remarks.append(Remark(rule.name, rule.strength, *sides, finding.reason, rule.source, rule.checked))
    recipes = [
        Recipe(name, _votes(name, remarks), cost, _budget(case, cost), _command(name, case, arguments))
        for name, cost in case.costs.recipes.items()
    ]
    regime = _regime(case)
    return Advice(
        sorted(recipes, key=_order),
        remarks,
        case.costs.rate_from,
        case.costs.refusal,
        case.evidence,
        regime,
        regime.recommendations(case.config) if regime else [],
    )


def _regime(case: Case) -> Regime | None:
    """Returns the regime of DAPT (tokens per parameter, and passes over the text), from the sizes in the evidence."""
    corpus, general, mixture = case.evidence.corpus, case.evidence.general, case.config.mixture
    if corpus is None or not corpus.tokens or not case.model.parameters:
        return None
    own = max(1, round(corpus.tokens * (1 - case.config.corpus.heldout_fraction)))
    share = mixture.replay_fraction if mixture.replays else 0.0
    trained = case.costs.dapt_tokens
    # the size of the replayed text is only known if this text is also the measured general text
    is_measured = bool(mixture.replay_paths) and mixture.replay_paths == case.config.evaluation.general_paths
    general_tokens = general.tokens if general and is_measured else None
    return Regime(
        case.model.parameters,
        own,
        None if trained is None else trained * (1 - share) / own,
        trained * share / general_tokens if trained and share and general_tokens else None,
        share,
    )


def _votes(recipe: str, remarks: Sequence[Remark]) -> int:
    return sum(
        VOTES[remark.strength] * ((recipe in remark.speaks_for) - (recipe in remark.speaks_against))
        for remark in remarks
        if remark.checked != "does not hold"
    )


def _budget(case: Case, cost: CostAhead) -> str:
    limit = case.config.advice.budget_device_hours
    if limit is None:
        return WITHIN
    if cost.device_hours is None:
        return UNKNOWN
    return WITHIN if cost.device_hours <= limit else ABOVE


def _order(recipe: Recipe) -> tuple[bool, int, float]:
    costs = (recipe.cost.device_hours, recipe.cost.flops, recipe.cost.tokens)
    return recipe.budget == ABOVE, -recipe.votes, next((cost for cost in costs if cost is not None), float("inf"))


def _command(recipe: str, case: Case, arguments: Sequence[str]) -> str:
    """Returns the command of a recipe's first job. The first job of DAPT+TAPT is DAPT."""
    one_pass = [] if is_limited(case.config.training) else ["--training.epochs=1"]
    job, more = {
        AS_IT_IS: ("finetune", []),
        TAPT: ("tapt", [*_of_tapt(case), *_unselected(case)]),
        SELECTED: ("tapt", _of_selection(case)),
        DAPT: ("dapt", [*one_pass, *_unselected(case)]),
        BOTH: ("dapt", [*one_pass, *_unselected(case)]),
    }[recipe]
    return shlex.join(["dontstop", job, *arguments, *_of_head(recipe, case), *more])


def _of_head(recipe: str, case: Case) -> list[str]:
    """Returns the option with which a recipe can use a model without a language-model head. Empty if none is needed.

    Discriminators are trained by replaced-token detection, which cannot use selected text, and are fine-tuned without
    their head.
    """
    if case.evidence.has_head or case.config.model.head == "new":
        return []
    if case.model.is_detector and recipe != SELECTED:
        return [] if recipe == AS_IT_IS else ["--objective.kind=rtd"]
    return ["--model.head=new"]


def _unselected(case: Case) -> list[str]:
    """Returns a list with the option that turns selection off. The list is empty if no pool is configured."""
    return ["--select.pool_paths=[]"] if case.config.select.pool_paths else []


def _of_selection(case: Case) -> list[str]:
    """Returns the options for TAPT on the proposed selection: selection, number of passes, and learning rate."""
    proposed = propose(case.config, case.evidence)
    if proposed is None:
        return []
    kind = [f"--select.kind={proposed.kind}"] if case.config.select.kind == "random" else []
    budget = [f"--{proposed.budget}"] if proposed.budget else []
    own = [option for option in _of_tapt(case) if not option.startswith("--training.epochs=")]
    return [*kind, *budget, f"--training.epochs={proposed.passes}", *own]


def _of_tapt(case: Case) -> list[str]:
    """Returns the options that replace the configured training length and learning rate with those of TAPT."""
    limits = [name for name in ("max_steps", "max_tokens", "max_flops") if getattr(case.config.training, name)]
    own = [f"--{name}={value:g}" for name, value in TAPT_LENGTH.items()]
    return [*own, *(f"--training.{name}=null" for name in limits)]
