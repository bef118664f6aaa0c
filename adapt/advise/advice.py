"""Adds up the rules' votes for and against each recipe, and orders the recipes by votes and cost.

Each rule quotes published results that support it; `adapt.advise.findings` checks the conditions of the rules. Unless
another source is named, the results are from Don't Stop Pretraining (DSP, arXiv 2004.10964): test scores of
RoBERTa-base in points, as means over five seeds.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from adapt.advise import findings
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
from adapt.advise.findings import Case, Finding
from adapt.advise.regime import Recommendation, Regime
from adapt.config.job_config import TAPT_LENGTH
from adapt.runner.record import Record
from adapt.show.blocks import Block, Cell, Table, TextBlock, summary
from adapt.terminal.console import duration

Strength = Literal["strong", "moderate", "weak"]
Checked = Literal["holds", "does not hold", "undecided"] | None

VOTES: dict[Strength, int] = {"strong": 3, "moderate": 2, "weak": 1}
CHECKED: dict[str, Checked] = {
    "tapt_gains": "undecided",
    "tapt_is_cheap": "holds",
    "domain_is_near": "undecided",
    "domain_is_far": "undecided",
    "both_are_best": "undecided",
    "dapt_forgets": "holds",
    "task_is_small": "holds",
    "texts_leak": "holds",
}
"""Verdicts of our replication with small models, keyed by rule (docs/science/index.md). We have not replicated the
rules that are not in this dictionary."""


@dataclass(frozen=True)
class Rule:
    """A rule that votes for or against recipes: its condition, its strength, and its source."""

    name: str
    strength: Strength
    source: str
    """The publication that supports the rule, with its results."""
    judge: Callable[[Case], Finding | None]

    @property
    def checked(self) -> Checked:
        """Whether the rule held in our own replication; None if we have not replicated the rule."""
        return CHECKED.get(self.name)


RULES = (
    Rule(
        "tapt_gains",
        "moderate",
        "DSP table 5: TAPT raises the score on all 8 tasks, by 0.5 points (RCT, IMDB) to 4.4 points (ACL-ARC)",
        findings.tapt_gains,
    ),
    Rule(
        "tapt_is_cheap",
        "strong",
        "DSP table 9: on RCT-500, TAPT takes 200 steps on 80 KB of text and DAPT 12,500 steps on 47 GB: TAPT takes "
        "about 1/60 of the steps",
        findings.tapt_is_cheap,
    ),
    Rule(
        "selection_gains",
        "moderate",
        "DSP table 8: compared with TAPT on the examples, adding 50 neighbours of each example raises the score by "
        "0.7 points (ChemProt), 1.0 (RCT-500) and 3.3 (ACL-ARC), adding 500 neighbours by 0.7, 1.9 and 8.1, and DAPT "
        "by 1.6, 2.7 and 8.0",
        findings.selection_gains,
    ),
    Rule(
        "selection_is_cheap",
        "strong",
        "DSP table 9: on RCT-500, TAPT with 50 neighbours takes 1,100 steps on 3 MB, DAPT 12,500 steps on 47 GB",
        findings.selection_is_cheap,
    ),
    Rule(
        "pool_is_too_small",
        "weak",
        "DSP tables 7 and 8: on RCT-500, TAPT on the whole unlabelled pool (Curated-TAPT) scores 83.4, DAPT 82.5",
        findings.pool_is_too_small,
    ),
    Rule(
        "domain_is_near",
        "moderate",
        "DSP table 3: DAPT raises the score on 7 of 8 tasks, by 0.4 points (RCT, IMDB) to 12.4 points (ACL-ARC), and "
        "does not change it on AGNews",
        findings.domain_is_near,
    ),
    Rule(
        "domain_is_far",
        "strong",
        "DSP table 3: DAPT on an irrelevant domain scores lower than the unadapted model on 5 of 8 tasks "
        "(HyperPartisan 86.6 -> 76.4), and lower than DAPT on the right domain on all 8",
        findings.domain_is_far,
    ),
    Rule(
        "domain_is_new",
        "weak",
        "DSP tables 3 and 12: RoBERTa's loss is 1.19 on text like its pre-training text. On computer science papers "
        "the loss is 1.63, and DAPT raises the scores of two tasks by 3.5 and 12.4 points. On reviews it is 2.10, but "
        "DAPT raises the scores by only 0.4 and 1.4 points",
        findings.domain_is_new,
    ),
    Rule(
        "domain_is_known",
        "weak",
        "DSP tables 3 and 12: RoBERTa's loss is 1.19 on text like its pre-training text. On news the loss is 1.08, and "
        "DAPT raises the score by 0 points (AGNews) and 1.6 points (HyperPartisan)",
        findings.domain_is_known,
    ),
    Rule(
        "both_are_best",
        "moderate",
        "DSP table 5: DAPT+TAPT has the best mean score on 7 of 8 tasks, 0.1 to 0.5 points above the second best. On "
        "HyperPartisan, TAPT has the best mean score",
        findings.both_are_best,
    ),
    Rule(
        "corpus_is_small",
        "moderate",
        "DSP tables 8 and 9: adding about 3 MB of random domain text to TAPT changes the score by -0.7 points "
        "(ChemProt), +0.8 (RCT-500) and +2.3 (ACL-ARC). DAPT uses 47 GB there",
        findings.corpus_is_small,
    ),
    Rule(
        "pool_is_curated",
        "moderate",
        "DSP tables 5, 7 and 8: TAPT with additional text of the task's kind (Curated-TAPT) scores 83.4 and TAPT 79.8 "
        "on RCT-500, 95.7 and 95.5 on IMDB, 89.9 and 90.4 on HyperPartisan",
        findings.pool_is_curated,
    ),
    Rule(
        "tasks_are_apart",
        "strong",
        "DSP table 6: TAPT on another task of the same domain scores 0.2 to 8.2 points below TAPT on the task itself",
        findings.tasks_are_apart,
    ),
    Rule(
        "cheap_answers_first",
        "moderate",
        "LM-Cocktail, arXiv 2311.13534: fine-tuning an encoder changes its score on the trained task from 71.8 to 76.0 "
        "and on other tasks from 49.8 to 48.5. After interpolation with the base model, the scores are 74.8 and 50.0. "
        "On replay: arXiv 2403.08763",
        findings.cheap_answers_first,
    ),
    Rule(
        "dapt_forgets",
        "moderate",
        "DSP table 12: DAPT raises RoBERTa's loss on text like its pre-training text from 1.19 to 1.33 (after DAPT on "
        "news) up to 2.07 (reviews). arXiv 2403.08763: with replay of earlier text and a new learning-rate schedule, "
        "continued training matches training from scratch",
        findings.dapt_forgets,
    ),
    Rule(
        "words_are_cut",
        "weak",
        "exBERT (2020.findings-emnlp.129) adds a biomedical vocabulary to BERT. Tokens per word (fertility) are "
        "counted as in arXiv 2012.15613",
        findings.words_are_cut,
    ),
    Rule(
        "task_is_small",
        "moderate",
        "DSP table 3: on ACL-ARC (1,688 examples) five seeds of RoBERTa have a standard deviation of 5.8 points",
        findings.task_is_small,
    ),
    Rule(
        "texts_leak",
        "strong",
        "Elangovan et al., arXiv 2102.01818: overlap of train and test inflates results; in the published ACL-ARC, "
        "52 of 139 test texts are also in train",
        findings.texts_leak,
    ),
    Rule(
        "head_is_missing",
        "strong",
        "arXiv 1908.10084: sentence embedding models are fine-tuned as siamese networks, without a language-model head",
        findings.head_is_missing,
    ),
    Rule(
        "vectors_are_kept",
        "moderate",
        "TSDAE (arXiv 2104.06979), scores as published by sentence-transformers: mean over four tasks 52.3 without "
        "adaptation, 55.9 with MLM and 56.5 with TSDAE; on retrieval 45.2, 46.7 and 49.2",
        findings.vectors_are_kept,
    ),
    Rule(
        "phases_are_published",
        "moderate",
        "arXiv 2412.13663 publishes checkpoints of the stable phase for continued training. BioClinical ModernBERT "
        "(arXiv 2506.10896) continues from such a checkpoint with 30%, then 15% masking",
        findings.phases_are_published,
    ),
    Rule(
        "detour_may_help",
        "weak",
        "arXiv 2605.12438: scores are 0.3 to 0.8 points higher than with MLM only on 11 English biomedical tasks "
        "(ModernBERT, 55 billion tokens), and 1.2 to 2.8 points higher on 8 French tasks (ModernCamemBERT)",
        findings.detour_may_help,
    ),
    Rule(
        "optimizer_differs",
        "weak",
        "pre-training chose these settings for the scale of the model's gradients: RoBERTa's training with large "
        "batches was more stable with beta2 0.98 than with 0.999 (arXiv 1907.11692, section 3.1)",
        findings.optimizer_differs,
    ),
    Rule(
        "documents_are_padded",
        "moderate",
        "arXiv 2107.02027: half of the positions are padding if each row of 512 tokens holds one text of Wikipedia, "
        "and packing several texts into a row trains BERT 2 times faster",
        findings.documents_are_padded,
    ),
    Rule(
        "replaced_tokens_fit",
        "moderate",
        "ELECTRA, arXiv 2003.10555; DeBERTaV3, arXiv 2111.09543",
        findings.replaced_tokens_fit,
    ),
    Rule(
        "instructions_are_forgotten",
        "strong",
        "arXiv 2410.10739: continued pre-training of an instruct model lowers its score for following instructions by "
        "up to 10 points. Adding the residual (instruct minus base weights) to the adapted base model restores it",
        findings.instructions_are_forgotten,
    ),
    Rule(
        "decoder_is_rewarmed",
        "strong",
        "arXiv 2403.08763: warming up and decaying the learning rate again, with 5% replay if the new data differ a "
        "little (25% if they differ a lot), matches training from scratch on all data, at 405 M and 10 B parameters",
        findings.decoder_is_rewarmed,
    ),
)


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
        seen = self.evidence.blocks() if self.evidence else []
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
    needs_head = not case.evidence.has_head and case.config.model.head != "new"
    head = ["--model.head=new"] if needs_head else []
    return shlex.join(["dontstop", job, *arguments, *head, *more])


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
