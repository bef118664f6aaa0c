"""Defines the rules of advice, about the text, the tasks and the model.

A rule is a function that checks a condition on the evidence. If the condition is met, it returns a finding: the reason,
and the recipes for and against which the rule votes. A finding without recipes is only shown to the user.

Each rule quotes published results that support it. Unless another source is named, the results are from Don't Stop
Pretraining (DSP, arXiv 2004.10964): test scores of RoBERTa-base in points, as means over five seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from adapt.advise.evidence import BOTH, DAPT, SELECTED, TAPT, Costs, Evidence, ModelFacts, TaskEvidence, propose
from adapt.advise.published_optimizers import PRETRAINED
from adapt.config import Config

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


Strength = Literal["strong", "moderate", "weak"]
Checked = Literal["holds", "does not hold", "does not matter", "undecided"] | None
Judge = Callable[[Case], Finding | None]


@dataclass(frozen=True)
class Rule:
    """A rule that votes for or against recipes: its condition, its strength, and its source."""

    name: str
    strength: Strength
    source: str
    """The publication that supports the rule, with its results."""
    judge: Judge
    checked: Checked
    """Verdict of our replication with small models (docs/science/index.md); None if we have not replicated the rule."""


RULES: list[Rule] = []
"""All rules, in the order in which they are shown."""


def rule(strength: Strength, source: str, checked: Checked = None) -> Callable[[Judge], Judge]:
    """Returns a decorator that adds a function to `RULES`. The rule is named like the function, without the `_`."""

    def add(judge: Judge) -> Judge:
        RULES.append(Rule(judge.__name__.removeprefix("_"), strength, source, judge, checked))
        return judge

    return add


@rule(
    "moderate",
    "DSP table 5: TAPT raises the score on all 8 tasks, by 0.5 points (RCT, IMDB) to 4.4 points (ACL-ARC)",
    checked="does not matter",
)
def _tapt_gains(case: Case) -> Finding | None:
    reason = "there is a labelled task, and TAPT can use the text of its examples at no cost"
    return Finding(reason, (TAPT,)) if case.evidence.tasks else None


@rule(
    "strong",
    "DSP table 9: on RCT-500, TAPT takes 200 steps on 80 KB of text and DAPT 12,500 steps on 47 GB: TAPT takes about "
    "1/60 of the steps",
    checked="holds",
)
def _tapt_is_cheap(case: Case) -> Finding | None:
    share = case.costs.share(TAPT, DAPT)
    if share is None or share > MUCH_CHEAPER:
        return None
    return Finding(f"TAPT takes 1/{1 / share:.0f} of the training FLOPs of DAPT", (TAPT,))


@rule(
    "moderate",
    "DSP table 8: compared with TAPT on the examples, adding 50 neighbours of each example raises the score by 0.7 "
    "points (ChemProt), 1.0 (RCT-500) and 3.3 (ACL-ARC), adding 500 neighbours by 0.7, 1.9 and 8.1, and DAPT by 1.6, "
    "2.7 and 8.0",
)
def _selection_gains(case: Case) -> Finding | None:
    proposed = propose(case.config, case.evidence)
    if proposed is None:
        return None
    documents = "documents" if proposed.documents is None else f"{proposed.documents:,} documents"
    tokens = "" if proposed.tokens is None else f" ({proposed.tokens / 1e6:,.2f} M tokens)"
    selected = f"select {documents}{tokens} from the pool with select.kind {proposed.kind}"
    return Finding(f"{selected}, and train on them {proposed.passes} times", (SELECTED,))


@rule(
    "strong",
    "DSP table 9: on RCT-500, TAPT with 50 neighbours takes 1,100 steps on 3 MB, DAPT 12,500 steps on 47 GB",
)
def _selection_is_cheap(case: Case) -> Finding | None:
    share = case.costs.selection_share()
    if share is None or share > MUCH_CHEAPER:
        return None
    reason = f"TAPT on the selection takes 1/{1 / share:.0f} of the FLOPs of one pass over the whole pool"
    return Finding(reason, (SELECTED,))


@rule("weak", "DSP tables 7 and 8: on RCT-500, TAPT on the whole unlabelled pool (Curated-TAPT) scores 83.4, DAPT 82.5")
def _pool_is_too_small(case: Case) -> Finding | None:
    if not (case.evidence.candidates and case.evidence.tasks) or propose(case.config, case.evidence):
        return None
    return Finding("the pool is too small to select from: run TAPT on all of it (tapt.pool_paths)")


@rule(
    "moderate",
    "DSP table 3: DAPT raises the score on 7 of 8 tasks, by 0.4 points (RCT, IMDB) to 12.4 points (ACL-ARC), and "
    "does not change it on AGNews",
    checked="does not matter",
)
def _domain_is_near(case: Case) -> Finding | None:
    near = _nearness(case.evidence, nearer=True)
    reason = f"the corpus shares more words with the task than general text does: {near}"
    return Finding(reason, (DAPT, BOTH)) if near else None


@rule(
    "strong",
    "DSP table 3: DAPT on an irrelevant domain scores lower than the unadapted model on 5 of 8 tasks (HyperPartisan "
    "86.6 -> 76.4), and lower than DAPT on the right domain on all 8",
    checked="does not matter",
)
def _domain_is_far(case: Case) -> Finding | None:
    far = _nearness(case.evidence, nearer=False)
    reason = f"the corpus shares no more words with the task than general text does: {far}"
    return Finding(reason, speaks_against=(DAPT, BOTH)) if far else None


@rule(
    "weak",
    "DSP tables 3 and 12: RoBERTa's loss is 1.19 on text like its pre-training text. On computer science papers the "
    "loss is 1.63, and DAPT raises the scores of two tasks by 3.5 and 12.4 points. On reviews it is 2.10, but DAPT "
    "raises the scores by only 0.4 and 1.4 points",
)
def _domain_is_new(case: Case) -> Finding | None:
    gap = _gap(case)
    if gap is None or gap <= GAP:
        return None
    return Finding(f"the model's loss on the corpus is {gap:.2f} nats above its loss on general text", _dapts(case))


@rule(
    "weak",
    "DSP tables 3 and 12: RoBERTa's loss is 1.19 on text like its pre-training text. On news the loss is 1.08, and "
    "DAPT raises the score by 0 points (AGNews) and 1.6 points (HyperPartisan)",
)
def _domain_is_known(case: Case) -> Finding | None:
    gap = _gap(case)
    if gap is None or gap > GAP:
        return None
    reason = f"the model's loss on the corpus is about the same as on general text, or lower ({gap:+.2f} nats)"
    return Finding(reason, speaks_against=_dapts(case))


@rule(
    "moderate",
    "DSP table 5: DAPT+TAPT has the best mean score on 7 of 8 tasks, 0.1 to 0.5 points above the second best. On "
    "HyperPartisan, TAPT has the best mean score",
    checked="undecided",
)
def _both_are_best(case: Case) -> Finding | None:
    if not (case.evidence.corpus and case.evidence.tasks) or _domain_is_far(case):
        return None
    return Finding("there is text of the domain and of the task", (BOTH,))


@rule(
    "moderate",
    "DSP tables 8 and 9: adding about 3 MB of random domain text to TAPT changes the score by -0.7 points "
    "(ChemProt), +0.8 (RCT-500) and +2.3 (ACL-ARC). DAPT uses 47 GB there",
)
def _corpus_is_small(case: Case) -> Finding | None:
    corpus = case.evidence.corpus
    if corpus is None or corpus.bytes is None or corpus.bytes >= SMALL or not case.evidence.tasks:
        return None
    reason = (
        f"the corpus has {corpus.bytes / 1e6:.1f} MB of text: use this text for TAPT instead of DAPT (tapt.pool_paths)"
    )
    return Finding(reason, (TAPT,), (DAPT, BOTH))


@rule(
    "moderate",
    "DSP tables 5, 7 and 8: TAPT with additional text of the task's kind (Curated-TAPT) scores 83.4 and TAPT 79.8 on "
    "RCT-500, 95.7 and 95.5 on IMDB, 89.9 and 90.4 on HyperPartisan",
)
def _pool_is_curated(case: Case) -> Finding | None:
    if case.evidence.pool is None or not case.evidence.tasks:
        return None
    return Finding("there is unlabelled text of the task's kind (tapt.pool_paths)", (TAPT,))


@rule(
    "strong",
    "DSP table 6: TAPT on another task of the same domain scores 0.2 to 8.2 points below TAPT on the task itself",
)
def _tasks_are_apart(case: Case) -> Finding | None:
    names = ", ".join(task.name for task in case.evidence.tasks)
    if len(case.evidence.tasks) < 2:
        return None
    return Finding(f"there are several tasks ({names}): do not use the model of one task's TAPT for another task")


@rule(
    "moderate",
    "LM-Cocktail, arXiv 2311.13534: fine-tuning an encoder changes its score on the trained task from 71.8 to 76.0 "
    "and on other tasks from 49.8 to 48.5. After interpolation with the base model, the scores are 74.8 and 50.0. On "
    "replay: arXiv 2403.08763. In our studies (docs/science/forgetting.md), replay lowers the loss of BERT-tiny on two "
    "domains by 0.147 nats (0.139 to 0.156) and its forgetting of general text by 0.063 (0.038 to 0.089), and the loss "
    "of a decoder of 20 M parameters on three domains by 0.255 (0.251 to 0.259)",
)
def _cheap_answers_first(case: Case) -> Finding | None:
    if not (case.evidence.corpus and case.evidence.general):
        return None
    method = case.config.method.kind
    before = "any method" if method == "plain" else f"method.kind {method}"
    return Finding(
        f"before you use {before} against forgetting, compare learning rates, replay and interpolation with the base"
        " model: dontstop chain run forgetting, with your --corpus, --general, --model and --steps"
    )


@rule(
    "moderate",
    "DSP table 12: DAPT raises RoBERTa's loss on text like its pre-training text from 1.19 to 1.33 (after DAPT on "
    "news) up to 2.07 (reviews). arXiv 2403.08763: with replay of earlier text and a new learning-rate schedule, "
    "continued training matches training from scratch",
    checked="holds",
)
def _dapt_forgets(case: Case) -> Finding | None:
    if not (case.evidence.corpus and case.evidence.general) or case.config.mixture.replays:
        return None
    return Finding(
        "the loss on general text is measured, but no general text is replayed: add some with mixture.replay_paths"
    )


@rule(
    "weak",
    "exBERT (2020.findings-emnlp.129) adds a biomedical vocabulary to BERT. Tokens per word (fertility) are counted "
    "as in arXiv 2012.15613",
)
def _words_are_cut(case: Case) -> Finding | None:
    corpus, general = case.evidence.corpus, case.evidence.general
    if not (corpus and general) or corpus.fertility < PIECES * general.fertility:
        return None
    pieces = f"{corpus.fertility:.2f} tokens per word in the corpus, {general.fertility:.2f} in general text"
    if corpus.extension is None:
        return Finding(f"{pieces}: an extended vocabulary may help (dontstop vocabulary analyze)")
    saving = f"{corpus.extension.tokens:,} new tokens would make the sample {corpus.extension.length_saved:.1%} shorter"
    return Finding(f"{pieces}; {saving}: run dontstop vocabulary analyze, then dontstop vocabulary extend")


@rule(
    "moderate",
    "DSP table 3: on ACL-ARC (1,688 examples) five seeds of RoBERTa have a standard deviation of 5.8 points",
    checked="holds",
)
def _task_is_small(case: Case) -> Finding | None:
    seeds = len(case.config.finetune.seeds)
    small = [f"{task.name} {task.examples:,}" for task in case.evidence.tasks if task.examples < FEW_EXAMPLES]
    if not small or seeds >= ENOUGH_SEEDS:
        return None
    return Finding(f"few train examples ({', '.join(small)}): run more than {seeds} seeds (finetune.seeds)")


@rule(
    "strong",
    "arXiv 2006.05987: longer training helps BERT on few examples; docs/science/dapt-tapt.md: with 100 labels of "
    "SciCite, MiniLM scores 23 points with the defaults, like the most frequent class, and 44 points in 40 epochs "
    "without patience",
    checked="holds",
)
def _steps_are_few(case: Case) -> Finding | None:
    finetune = case.config.finetune
    few = [f"{task.name} {task.examples:,}" for task in case.evidence.tasks if finetune.may_end_early(task.examples)]
    advice = "set finetune.patience to null, and finetune.epochs so that there are about 300 steps"
    return Finding(f"fine-tuning may end before it has learnt anything ({', '.join(few)}): {advice}") if few else None


@rule(
    "strong",
    "Elangovan et al., arXiv 2102.01818: overlap of train and test inflates results; in the published ACL-ARC, 52 of "
    "139 test texts are also in train",
    checked="holds",
)
def _texts_leak(case: Case) -> Finding | None:
    leaks = [f"{task.name} {task.leaked} of {task.test}" for task in case.evidence.tasks if task.leaked]
    if not leaks:
        return None
    return Finding(f"test texts are also in train ({', '.join(leaks)}): also report the score without these texts")


def _dapts(case: Case) -> tuple[str, ...]:
    return (DAPT, BOTH) if case.evidence.tasks else (DAPT,)


def _gap(case: Case) -> float | None:
    """Returns the loss on the corpus minus that on general text; None if a text is missing, or the head is random."""
    corpus, general = case.evidence.corpus, case.evidence.general
    is_random = case.config.model.head == "new" or not case.evidence.has_head
    if not (corpus and general) or is_random:
        return None
    return corpus.loss - general.loss


def _nearness(evidence: Evidence, nearer: bool) -> str:
    """Lists the tasks that share more words with the corpus than with general text, or if not `nearer`, the others.

    Empty if fewer than half of all tasks would be listed, or if `nearer`, exactly half.
    """

    def is_near(task: TaskEvidence) -> bool:
        return (task.overlap or 0) > (task.general_overlap or 0)

    known = [task for task in evidence.tasks if task.overlap is not None and task.general_overlap is not None]
    chosen = [task for task in known if is_near(task) == nearer]
    if 2 * len(chosen) < len(known) + nearer:  # a corpus that is nearer to exactly half of the tasks counts as far
        return ""
    return ", ".join(f"{task.name} {task.overlap:.1%} against {task.general_overlap:.1%}" for task in chosen)


@rule(
    "strong",
    "arXiv 1908.10084: sentence embedding models are fine-tuned as siamese networks, without a language-model head",
)
def _head_is_missing(case: Case) -> Finding | None:
    if case.config.model.head != "new" and case.evidence.has_head:
        return None
    first = "" if case.config.model.head_warmup_steps else "; first train only the head (model.head_warmup_steps)"
    if case.model.is_detector and case.config.model.head != "new":
        return Finding(
            "the model has a head that detects replaced tokens, but no language-model head: the losses above were"
            " measured with a head of random weights, so they say nothing about the model"
        )
    missing = "" if case.evidence.has_head else "the model has no language-model head (model.head new adds one): "
    return Finding(f"{missing}a new head has random weights, so the losses above say nothing about the model{first}")


@rule(
    "moderate",
    "TSDAE (arXiv 2104.06979), scores as published by sentence-transformers: mean over four tasks 52.3 without "
    "adaptation, 55.9 with MLM and 56.5 with TSDAE; on retrieval 45.2, 46.7 and 49.2",
)
def _vectors_are_kept(case: Case) -> Finding | None:
    if not case.model.is_sentence_model:
        return None
    return Finding(
        "the model computes sentence vectors: train these after MLM (objective.kind tsdae), measure them on pairs"
        " (retrieval.pairs), and export them (export.sentence_transformers)"
    )


@rule(
    "moderate",
    "arXiv 2412.13663 publishes checkpoints of the stable phase for continued training. BioClinical ModernBERT "
    "(arXiv 2506.10896) continues from such a checkpoint with 30%, then 15% masking",
)
def _phases_are_published(case: Case) -> Finding | None:
    if case.model.kind != "modernbert" or case.config.training.phases:
        return None
    return Finding(
        "continue ModernBERT in two phases (training.phases): 30% masking at a constant learning rate, then 15% while"
        " the rate falls (dontstop recipes modernbert_dapt). The checkpoint of the stable phase is a .pt file, which"
        " must be converted to safetensors first, and needs no warm-up; the final model needs a short warm-up"
    )


@rule(
    "weak",
    "arXiv 2605.12438: scores are 0.3 to 0.8 points higher than with MLM only on 11 English biomedical tasks "
    "(ModernBERT, 55 billion tokens), and 1.2 to 2.8 points higher on 8 French tasks (ModernCamemBERT)",
)
def _detour_may_help(case: Case) -> Finding | None:
    is_plain = case.config.objective.kind == "mlm" and not case.config.training.phases
    if not is_plain or case.model.is_decoder or case.evidence.corpus is None or case.model.kind not in DETOURS:
        return None
    return Finding(
        "a phase of next-token prediction before MLM may help at equal compute (dontstop chain run causal_detour)"
    )


DETOURS = {"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert"}
"""Families of encoders whose attention can be made causal."""


@rule(
    "weak",
    "pre-training chose these settings for the scale of the model's gradients: RoBERTa's training with large batches "
    "was more stable with beta2 0.98 than with 0.999 (arXiv 1907.11692, section 3.1)",
)
def _optimizer_differs(case: Case) -> Finding | None:
    # the settings of deberta-v2 are those of models pre-trained with MLM, and not those of DeBERTa-v3
    published = None if case.model.is_detector and case.model.kind != "electra" else PRETRAINED.get(case.model.kind)
    changes = published.differences(case.config.training) if published else []
    if not published or not changes:
        return None
    return Finding(
        f"{case.model.kind} was pre-trained with other optimizer settings ({published.source}). To use them, add"
        f" {' '.join(changes)}"
    )


@rule(
    "moderate",
    "arXiv 2107.02027: half of the positions are padding if each row of 512 tokens holds one text of Wikipedia, and "
    "packing several texts into a row trains BERT 2 times faster",
)
def _documents_are_padded(case: Case) -> Finding | None:
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


@rule("moderate", "ELECTRA, arXiv 2003.10555; DeBERTaV3, arXiv 2111.09543")
def _replaced_tokens_fit(case: Case) -> Finding | None:
    if not case.model.is_detector or case.config.objective.kind == "rtd":
        return None
    headless = ", without model.head" if case.config.model.head == "new" else ""
    return Finding(
        f"the model was pre-trained by replaced-token detection: continue with it (objective.kind rtd{headless})"
    )


@rule(
    "strong",
    "arXiv 2410.10739: continued pre-training of an instruct model lowers its score for following instructions by up "
    "to 10 points. Adding the residual (instruct minus base weights) to the adapted base model restores it",
)
def _instructions_are_forgotten(case: Case) -> Finding | None:
    if not case.model.is_instruct:
        return None
    return Finding(
        "training on plain text would make the instruct model forget to follow instructions: adapt its base model,"
        " then add the difference of instruct and base weights (dontstop merge, merge.kind residual)"
    )


@rule(
    "strong",
    "arXiv 2403.08763: warming up and decaying the learning rate again, with 5% replay if the new data differ a "
    "little (25% if they differ a lot), matches training from scratch on all data, at 405 M and 10 B parameters",
)
def _decoder_is_rewarmed(case: Case) -> Finding | None:
    training = case.config.training
    warm_up = training.warmup_fraction if training.warmup_steps is None else training.warmup_steps
    if not case.model.is_decoder or (case.config.mixture.replays and (warm_up or training.phases)):
        return None
    return Finding(
        "continue to train a decoder with a new warm-up to a lower peak learning rate, a new decay, and 5% to 25% of"
        " general text (dontstop recipes decoder_cpt)"
    )
