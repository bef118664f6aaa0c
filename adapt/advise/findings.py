"""Checks the conditions of the rules of advice, about the text, the tasks and the model.

Each function checks one condition on the evidence. If the condition is met, the function returns a finding: the reason,
and the recipes for and against which the rule votes. A finding without recipes is only shown to the user.
"""

from dataclasses import dataclass, field

from adapt.advise.evidence import BOTH, DAPT, SELECTED, TAPT, Costs, Evidence, ModelFacts, TaskEvidence, propose
from adapt.config import Config, TrainingConfig

MUCH_CHEAPER = 0.1
"""A recipe counts as cheap if its training compute is at most this share of the compute of the alternative."""
GAP = 0.1
"""Maximum difference of two losses that count as equal [nats]: twice the standard error of the loss on a sample."""
SMALL = 5_000_000
"""Size below which a corpus counts as small [bytes]."""
PIECES = 1.2
"""A tokenizer is a bad fit if the corpus has at least this many times as many tokens per word as general text."""
FEW_EXAMPLES, ENOUGH_SEEDS = 2000, 10
"""A task with fewer than FEW_EXAMPLES train examples should be run with at least ENOUGH_SEEDS seeds."""


@dataclass(frozen=True)
class Case:
    """The input of the rules of advice: the configuration, the evidence, the costs and the model's properties."""

    config: Config
    evidence: Evidence
    costs: Costs
    model: ModelFacts = field(default_factory=ModelFacts)


@dataclass(frozen=True)
class Finding:
    """The result of a rule whose condition is met."""

    reason: str
    """A sentence that explains the recommendation and quotes the measurements behind it."""
    speaks_for: tuple[str, ...] = ()
    """Recipes for which the rule votes."""
    speaks_against: tuple[str, ...] = ()
    """Recipes against which the rule votes."""


def tapt_gains(case: Case) -> Finding | None:
    """Recommends TAPT if there is a task, because the text of its examples is available at no cost."""
    reason = "there is a labelled task, and TAPT can use the text of its examples at no cost"
    return Finding(reason, (TAPT,)) if case.evidence.tasks else None


def tapt_is_cheap(case: Case) -> Finding | None:
    """Recommends TAPT if its training work is at most a tenth of DAPT's."""
    share = case.costs.share(TAPT, DAPT)
    if share is None or share > MUCH_CHEAPER:
        return None
    return Finding(f"TAPT takes 1/{1 / share:.0f} of the training FLOPs of DAPT", (TAPT,))


def selection_gains(case: Case) -> Finding | None:
    """Recommends TAPT on a selection if there is a task and a pool that is large enough to select from."""
    proposed = propose(case.config, case.evidence)
    if proposed is None:
        return None
    documents = "documents" if proposed.documents is None else f"{proposed.documents:,} documents"
    tokens = "" if proposed.tokens is None else f" ({proposed.tokens / 1e6:,.2f} M tokens)"
    reason = (
        f"select {documents}{tokens} from the pool with select.kind {proposed.kind}, and train on them"
        f" {proposed.passes} times"
    )
    return Finding(reason, (SELECTED,))


def selection_is_cheap(case: Case) -> Finding | None:
    """Recommends TAPT on a selection if its training work is at most a tenth of one pass over the whole pool."""
    share = case.costs.selection_share()
    if share is None or share > MUCH_CHEAPER:
        return None
    reason = f"TAPT on the selection takes 1/{1 / share:.0f} of the FLOPs of one pass over the whole pool"
    return Finding(reason, (SELECTED,))


def pool_is_too_small(case: Case) -> Finding | None:
    """Recommends using the whole pool for TAPT if the pool is too small to select from."""
    if not (case.evidence.candidates and case.evidence.tasks) or propose(case.config, case.evidence):
        return None
    return Finding("the pool is too small to select from: run TAPT on all of it (tapt.pool_paths)")


def domain_is_near(case: Case) -> Finding | None:
    """Recommends DAPT if, for most tasks, the corpus shares more words with the task than general text does."""
    near = _nearness(case.evidence, nearer=True)
    reason = f"the corpus shares more words with the task than general text does: {near}"
    return Finding(reason, (DAPT, BOTH)) if near else None


def domain_is_far(case: Case) -> Finding | None:
    """Advises against DAPT if the corpus is far from the tasks.

    The corpus is far if, for half of the tasks or more, the corpus shares no more words with the task than general text
    does.
    """
    far = _nearness(case.evidence, nearer=False)
    reason = f"the corpus shares no more words with the task than general text does: {far}"
    return Finding(reason, speaks_against=(DAPT, BOTH)) if far else None


def domain_is_new(case: Case) -> Finding | None:
    """Recommends DAPT if the model's loss on the corpus is more than 0.1 nats above its loss on general text."""
    gap = _gap(case)
    if gap is None or gap <= GAP:
        return None
    return Finding(f"the model's loss on the corpus is {gap:.2f} nats above its loss on general text", _dapts(case))


def domain_is_known(case: Case) -> Finding | None:
    """Advises against DAPT if the model's loss on the corpus is at most 0.1 nats above its loss on general text."""
    gap = _gap(case)
    if gap is None or gap > GAP:
        return None
    reason = f"the model's loss on the corpus is about the same as on general text, or lower ({gap:+.2f} nats)"
    return Finding(reason, speaks_against=_dapts(case))


def both_are_best(case: Case) -> Finding | None:
    """Recommends DAPT then TAPT if there are a corpus and a task, unless the corpus is far from the task's text."""
    if not (case.evidence.corpus and case.evidence.tasks) or domain_is_far(case):
        return None
    return Finding("there is text of the domain and of the task", (BOTH,))


def corpus_is_small(case: Case) -> Finding | None:
    """Recommends TAPT and advises against DAPT if there is a task, and the corpus has less than 5 MB of text."""
    corpus = case.evidence.corpus
    if corpus is None or corpus.bytes is None or corpus.bytes >= SMALL or not case.evidence.tasks:
        return None
    reason = (
        f"the corpus has {corpus.bytes / 1e6:.1f} MB of text: use this text for TAPT instead of DAPT (tapt.pool_paths)"
    )
    return Finding(reason, (TAPT,), (DAPT, BOTH))


def pool_is_curated(case: Case) -> Finding | None:
    """Recommends TAPT if there are a task and unlabelled text of the same kind as the task's text (tapt.pool_paths)."""
    if case.evidence.pool is None or not case.evidence.tasks:
        return None
    return Finding("there is unlabelled text of the task's kind (tapt.pool_paths)", (TAPT,))


def tasks_are_apart(case: Case) -> Finding | None:
    """Recommends running TAPT separately for each task if there are several."""
    names = ", ".join(task.name for task in case.evidence.tasks)
    if len(case.evidence.tasks) < 2:
        return None
    return Finding(f"there are several tasks ({names}): do not use the model of one task's TAPT for another task")


def cheap_answers_first(case: Case) -> Finding | None:
    """Recommends trying cheap measures before a method against forgetting, if the loss on general text is measured."""
    if not (case.evidence.corpus and case.evidence.general):
        return None
    method = case.config.method.kind
    before = "any method" if method == "plain" else f"method.kind {method}"
    return Finding(
        f"before you use {before} against forgetting, compare learning rates, replay and interpolation with the base"
        " model: dontstop chain run forgetting, with your --corpus, --general, --model and --steps"
    )


def dapt_forgets(case: Case) -> Finding | None:
    """Recommends replaying general text if the loss on general text is measured, but no general text is replayed."""
    if not (case.evidence.corpus and case.evidence.general) or case.config.mixture.replays:
        return None
    return Finding(
        "the loss on general text is measured, but no general text is replayed: add some with mixture.replay_paths"
    )


def words_are_cut(case: Case) -> Finding | None:
    """Recommends extending the vocabulary if the corpus has at least 1.2 times the tokens per word of general text."""
    corpus, general = case.evidence.corpus, case.evidence.general
    if not (corpus and general) or corpus.fertility < PIECES * general.fertility:
        return None
    pieces = f"{corpus.fertility:.2f} tokens per word in the corpus, {general.fertility:.2f} in general text"
    if corpus.extension is None:
        return Finding(f"{pieces}: an extended vocabulary may help (dontstop vocabulary analyze)")
    saving = f"{corpus.extension.tokens:,} new tokens would make the sample {corpus.extension.length_saved:.1%} shorter"
    return Finding(f"{pieces}; {saving}: run dontstop vocabulary analyze, then dontstop vocabulary extend")


def task_is_small(case: Case) -> Finding | None:
    """Recommends running at least 10 seeds if a task has fewer than 2,000 train examples."""
    seeds = len(case.config.finetune.seeds)
    small = [f"{task.name} {task.examples:,}" for task in case.evidence.tasks if task.examples < FEW_EXAMPLES]
    if not small or seeds >= ENOUGH_SEEDS:
        return None
    return Finding(f"few train examples ({', '.join(small)}): run more than {seeds} seeds (finetune.seeds)")


def texts_leak(case: Case) -> Finding | None:
    """Recommends reporting a second score, without the leaked examples, if test texts are also in the train split."""
    leaks = [f"{task.name} {task.leaked} of {task.test}" for task in case.evidence.tasks if task.leaked]
    if not leaks:
        return None
    return Finding(f"test texts are also in train ({', '.join(leaks)}): also report the score without these texts")


def _dapts(case: Case) -> tuple[str, ...]:
    return (DAPT, BOTH) if case.evidence.tasks else (DAPT,)


def _gap(case: Case) -> float | None:
    """Returns the loss on the corpus minus the loss on general text.

    Returns None if one of the two texts is missing, or if the language-model head is new, because the losses of a new
    head say nothing.
    """
    corpus, general = case.evidence.corpus, case.evidence.general
    is_random = case.config.model.head == "new" or not case.evidence.has_head
    if not (corpus and general) or is_random:
        return None
    return corpus.loss - general.loss


def _nearness(evidence: Evidence, nearer: bool) -> str:
    """Lists the tasks that share more words with the corpus than with general text.

    If `nearer` is false, lists the other tasks.

    The result is empty if fewer than half of all tasks would be listed, or if `nearer` is true and exactly half would
    be listed.
    """

    def is_near(task: TaskEvidence) -> bool:
        return (task.overlap or 0) > (task.general_overlap or 0)

    known = [task for task in evidence.tasks if task.overlap is not None and task.general_overlap is not None]
    chosen = [task for task in known if is_near(task) == nearer]
    if 2 * len(chosen) < len(known) + nearer:  # a corpus that is nearer to exactly half of the tasks counts as far
        return ""
    return ", ".join(f"{task.name} {task.overlap:.1%} against {task.general_overlap:.1%}" for task in chosen)


@dataclass(frozen=True)
class Pretraining:
    """The optimizer settings with which a family of models was pre-trained, as published."""

    optimizer: str
    beta1: float
    beta2: float
    epsilon: float
    source: str

    def differences(self, training: TrainingConfig) -> list[str]:
        """Returns the options that set the published values, one for each setting in which `training` differs."""
        names = ("optimizer", "beta1", "beta2", "epsilon")
        return [
            f"--training.{name} {getattr(self, name)}"
            for name in names
            if getattr(self, name) != getattr(training, name)
        ]


PRETRAINED = {
    "bert": Pretraining("adamw", 0.9, 0.999, 1e-6, "arXiv 1810.04805, section A.2, and its code"),
    "electra": Pretraining("adamw", 0.9, 0.999, 1e-6, "arXiv 2003.10555 and its code"),
    "roberta": Pretraining("adamw", 0.9, 0.98, 1e-6, "arXiv 1907.11692, table 9"),
    "modernbert": Pretraining("stable_adamw", 0.9, 0.98, 1e-6, "arXiv 2412.13663, table 3"),
    "llama": Pretraining("adamw", 0.9, 0.95, 1e-5, "arXiv 2307.09288, section 2.2"),
}
"""The published optimizer settings of families of models, keyed by `model_type` in config.json."""


def head_is_missing(case: Case) -> Finding | None:
    """Explains how to train a model that has no language-model head (`model.head: new`)."""
    if case.config.model.head != "new" and case.evidence.has_head:
        return None
    first = "" if case.config.model.head_warmup_steps else "; first train only the head (model.head_warmup_steps)"
    missing = "" if case.evidence.has_head else "the model has no language-model head (model.head new adds one): "
    return Finding(f"{missing}a new head has random weights, so the losses above say nothing about the model{first}")


def vectors_are_kept(case: Case) -> Finding | None:
    """Recommends TSDAE, an objective that trains sentence vectors, for models of sentence-transformers."""
    if not case.model.is_sentence_model:
        return None
    return Finding(
        "the model computes sentence vectors: train these after MLM (objective.kind tsdae), measure them on pairs"
        " (retrieval.pairs), and export them (export.sentence_transformers)"
    )


def phases_are_published(case: Case) -> Finding | None:
    """Recommends the published schedule of two training phases for ModernBERT."""
    if case.model.kind != "modernbert" or case.config.training.phases:
        return None
    return Finding(
        "continue ModernBERT from a checkpoint of its stable phase, in two phases without warm-up (training.phases):"
        " 30% masking at a constant learning rate, then 15% while the rate falls (dontstop recipes modernbert_dapt)"
    )


def detour_may_help(case: Case) -> Finding | None:
    """Mentions the causal detour, a phase of next-token prediction before MLM, for encoders trained by MLM only."""
    is_plain = case.config.objective.kind == "mlm" and not case.config.training.phases
    if not is_plain or case.model.is_decoder or case.evidence.corpus is None or case.model.kind not in DETOURS:
        return None
    return Finding(
        "a phase of next-token prediction before MLM may help at equal compute (dontstop chain run causal_detour)"
    )


DETOURS = {"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert"}
"""Families of encoders whose attention can be made causal."""


def optimizer_differs(case: Case) -> Finding | None:
    """Names the optimizer settings in which the configuration differs from the model's pre-training."""
    published = PRETRAINED.get(case.model.kind)
    changes = published.differences(case.config.training) if published else []
    if not published or not changes:
        return None
    return Finding(
        f"{case.model.kind} was pre-trained with other optimizer settings ({published.source}). To use them, add"
        f" {' '.join(changes)}"
    )


def documents_are_padded(case: Case) -> Finding | None:
    """Explains the cost of training if the model cannot pack documents, so that each document is a separate row."""
    if case.evidence.way == "packed":
        return None
    rows = {
        "shared rows": "rows of several documents with a mask between them",
        "padded": "padded rows",
        "by length": "rows of exactly the same length",
    }[case.evidence.way]
    share = case.evidence.corpus.padding if case.evidence.corpus else None
    cost = f" ({share:.0%} of the computed positions would be padding)" if share else ""
    return Finding(
        f"the model does not support packed documents, so documents are computed as {rows}, which is slower{cost}"
    )


def replaced_tokens_fit(case: Case) -> Finding | None:
    """Recommends replaced-token detection for models that were pre-trained with this objective."""
    if case.model.kind not in ("electra", "deberta-v2") or case.config.objective.kind == "rtd":
        return None
    return Finding(
        f"{case.model.kind} models are pre-trained by replaced-token detection: continue with it (objective.kind rtd)"
    )


def instructions_are_forgotten(case: Case) -> Finding | None:
    """Recommends adapting an instruct model's base model, then adding the difference of instruct and base weights."""
    if not case.model.is_instruct:
        return None
    return Finding(
        "training on plain text would make the instruct model forget to follow instructions: adapt its base model,"
        " then add the difference of instruct and base weights (dontstop merge, merge.kind residual)"
    )


def decoder_is_rewarmed(case: Case) -> Finding | None:
    """Recommends warm-up and replay of general text if a decoder is trained without warm-up or general text."""
    training = case.config.training
    warm_up = training.warmup_fraction if training.warmup_steps is None else training.warmup_steps
    if not case.model.is_decoder or (case.config.mixture.replays and (warm_up or training.phases)):
        return None
    return Finding(
        "continue to train a decoder with a new warm-up to a lower peak learning rate, a new decay, and 5% to 25% of"
        " general text (dontstop recipes decoder_cpt)"
    )
