"""What of the evidence speaks for or against a recipe, or is worth knowing: the conditions of the rules."""

from dataclasses import dataclass

from adapt.advise.evidence import Evidence, TaskEvidence
from adapt.advise.recipe_costs import BOTH, DAPT, SELECTED, TAPT, Costs, propose
from adapt.config import Config

MUCH_CHEAPER = 0.1
"""TAPT goes first if its work is a smaller share of DAPT's than this."""
GAP = 0.1
"""Losses that differ by less count as equal [nats]: it is twice the standard error of a sample's loss."""
SMALL = 5_000_000
"""A corpus below this is small [bytes of text]."""
PIECES = 1.2
"""From this ratio of fertilities on, a tokenizer fits badly."""
FEW_EXAMPLES, ENOUGH_SEEDS = 2000, 10


@dataclass(frozen=True)
class Case:
    """What the rules look at."""

    config: Config
    evidence: Evidence
    costs: Costs


@dataclass(frozen=True)
class Finding:
    """What a rule says of a case."""

    reason: str
    """The reason in words, with the figures of the case."""
    speaks_for: tuple[str, ...] = ()
    """Recipes that it speaks for."""
    speaks_against: tuple[str, ...] = ()


def tapt_gains(case: Case) -> Finding | None:
    """If there is a task, its own text speaks for TAPT."""
    return Finding("there is a labelled task, whose own text costs nothing", (TAPT,)) if case.evidence.tasks else None


def tapt_is_cheap(case: Case) -> Finding | None:
    """If TAPT takes a small part of the work of DAPT, that speaks for TAPT."""
    share = case.costs.share(TAPT, DAPT)
    if share is None or share > MUCH_CHEAPER:
        return None
    return Finding(f"here TAPT takes 1/{1 / share:.0f} of the work of DAPT", (TAPT,))


def selection_gains(case: Case) -> Finding | None:
    """If there is a pool beside a task, a part of it that is like the task is worth training on."""
    proposed = propose(case.config, case.evidence)
    if proposed is None:
        return None
    documents = "documents" if proposed.documents is None else f"{proposed.documents:,} documents"
    tokens = "" if proposed.tokens is None else f" ({proposed.tokens / 1e6:,.2f} M tokens)"
    reason = f"of the pool, select {documents}{tokens} by {proposed.kind}, and train on them {proposed.passes} times"
    return Finding(reason, (SELECTED,))


def selection_is_cheap(case: Case) -> Finding | None:
    """If TAPT on a selection takes a small part of the work of a pass over the whole pool, that speaks for it."""
    share = case.costs.selection_share()
    if share is None or share > MUCH_CHEAPER:
        return None
    return Finding(f"here that takes 1/{1 / share:.0f} of the work of one pass over the whole pool", (SELECTED,))


def pool_is_too_small(case: Case) -> Finding | None:
    """If a pool is so small that selecting saves nothing, TAPT should have all of it."""
    if not (case.evidence.candidates and case.evidence.tasks) or propose(case.config, case.evidence):
        return None
    return Finding("the pool is too small to select from: give all of it to TAPT (tapt.pool_paths)")


def domain_is_near(case: Case) -> Finding | None:
    """If the corpus shares more words with most tasks than general text does, that speaks for DAPT."""
    near = _nearness(case.evidence, nearer=True)
    reason = f"the corpus shares more words with the task than general text does: {near}"
    return Finding(reason, (DAPT, BOTH)) if near else None


def domain_is_far(case: Case) -> Finding | None:
    """If the corpus shares fewer words with most tasks than general text does, that speaks against DAPT."""
    far = _nearness(case.evidence, nearer=False)
    reason = f"the corpus shares no more words with the task than general text does: {far}"
    return Finding(reason, speaks_against=(DAPT, BOTH)) if far else None


def domain_is_new(case: Case) -> Finding | None:
    """If the model knows the corpus less well than general text, that speaks for DAPT."""
    gap = _gap(case.evidence)
    if gap is None or gap <= GAP:
        return None
    return Finding(f"the model's loss on the corpus is {gap:.2f} nats above that on general text", _dapts(case))


def domain_is_known(case: Case) -> Finding | None:
    """If the model knows the corpus as well as general text, that speaks against DAPT."""
    gap = _gap(case.evidence)
    if gap is None or gap > GAP:
        return None
    reason = f"the model's loss on the corpus is no higher than on general text ({gap:+.2f} nats)"
    return Finding(reason, speaks_against=_dapts(case))


def both_are_best(case: Case) -> Finding | None:
    """If there are a corpus and a task, and the corpus is not known to be far from it, that speaks for both."""
    if not (case.evidence.corpus and case.evidence.tasks) or domain_is_far(case):
        return None
    return Finding("there is text of the domain and of the task", (BOTH,))


def corpus_is_small(case: Case) -> Finding | None:
    """If there is little text, that speaks against DAPT."""
    corpus = case.evidence.corpus
    if corpus is None or corpus.bytes is None or corpus.bytes >= SMALL or not case.evidence.tasks:
        return None
    reason = f"the corpus has {corpus.bytes / 1e6:.1f} MB of text: rather give it to TAPT (tapt.pool_paths)"
    return Finding(reason, (TAPT,), (DAPT, BOTH))


def pool_is_curated(case: Case) -> Finding | None:
    """If there is more unlabelled text of the task's kind, that speaks for TAPT."""
    if case.evidence.pool is None or not case.evidence.tasks:
        return None
    return Finding("there is unlabelled text of the task's kind (tapt.pool_paths)", (TAPT,))


def tasks_are_apart(case: Case) -> Finding | None:
    """If there are several tasks, each needs a TAPT of its own."""
    names = ", ".join(task.name for task in case.evidence.tasks)
    if len(case.evidence.tasks) < 2:
        return None
    return Finding(f"there are several tasks ({names}): a model that TAPT made for one is not to be taken for another")


def cheap_answers_first(case: Case) -> Finding | None:
    """If general text is measured on, the answers that cost least come before every method against forgetting."""
    if not (case.evidence.corpus and case.evidence.general):
        return None
    method = case.config.method.kind
    before = "any method" if method == "plain" else f"method.kind {method}"
    return Finding(
        f"before {before} against forgetting, try learning rates, replay and interpolation with the base in one report:"
        " dontstop chain run forgetting (--corpus, --general, --model and --steps name yours)"
    )


def dapt_forgets(case: Case) -> Finding | None:
    """If general text is measured and none is replayed, the user should name some to replay."""
    if not (case.evidence.corpus and case.evidence.general) or case.config.mixture.replay_paths:
        return None
    return Finding("general text is to be measured, and none is replayed: name some in mixture.replay_paths")


def words_are_cut(case: Case) -> Finding | None:
    """If the tokenizer cuts the corpus's words into more pieces than general ones, more vocabulary may help."""
    corpus, general = case.evidence.corpus, case.evidence.general
    if not (corpus and general) or corpus.fertility < PIECES * general.fertility:
        return None
    pieces = f"{corpus.fertility:.2f} pieces a word in the corpus, {general.fertility:.2f} in general text"
    if corpus.extension is None:
        return Finding(f"{pieces}: an extended vocabulary is worth a look (dontstop vocabulary analyze)")
    words = (
        f"{corpus.extension.tokens:,} of its words as tokens would make the sample {corpus.extension.length_saved:.1%}"
    )
    return Finding(f"{pieces}; {words} shorter: see dontstop vocabulary analyze, then extend")


def task_is_small(case: Case) -> Finding | None:
    """If a task has few examples, few seeds are not enough."""
    seeds = len(case.config.finetune.seeds)
    small = [f"{task.name} {task.examples:,}" for task in case.evidence.tasks if task.examples < FEW_EXAMPLES]
    if not small or seeds >= ENOUGH_SEEDS:
        return None
    return Finding(f"few train examples ({', '.join(small)}): run more than {seeds} seeds (finetune.seeds)")


def texts_leak(case: Case) -> Finding | None:
    """If test texts stand in train too, the score without them should be reported as well."""
    leaks = [f"{task.name} {task.leaked} of {task.test}" for task in case.evidence.tasks if task.leaked]
    if not leaks:
        return None
    return Finding(f"test texts stand in train too ({', '.join(leaks)}): report the score without them as well")


def _dapts(case: Case) -> tuple[str, ...]:
    return (DAPT, BOTH) if case.evidence.tasks else (DAPT,)


def _gap(evidence: Evidence) -> float | None:
    return evidence.corpus.loss - evidence.general.loss if evidence.corpus and evidence.general else None


def _nearness(evidence: Evidence, nearer: bool) -> str:
    """Names the tasks to which the corpus is nearer than general text, or with `nearer` false the other tasks.

    The text is empty if these are not most of the tasks.
    """

    def is_near(task: TaskEvidence) -> bool:
        return (task.overlap or 0) > (task.general_overlap or 0)

    known = [task for task in evidence.tasks if task.overlap is not None and task.general_overlap is not None]
    chosen = [task for task in known if is_near(task) == nearer]
    if 2 * len(chosen) < len(known) + nearer:  # half of the tasks are not most of them
        return ""
    return ", ".join(f"{task.name} {task.overlap:.1%} against {task.general_overlap:.1%}" for task in chosen)
