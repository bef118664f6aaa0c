"""The rules of advice, each with published figures that support it. `adapt.advise.findings` checks their conditions.

Unless another source is named, figures are from Don't Stop Pretraining (DSP, arXiv 2004.10964): test scores of
RoBERTa-base in points, means over five seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from adapt.advise import findings
from adapt.advise.findings import Case, Finding

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
"""Verdict of our replication with small models, keyed by rule (docs/science/index.md). We have not replicated the rules
that are not in this dictionary."""


@dataclass(frozen=True)
class Rule:
    """A rule of advice: its condition, its strength, and its source."""

    name: str
    strength: Strength
    source: str
    """The publication that supports the rule, with its figures."""
    judge: Callable[[Case], Finding | None]

    @property
    def checked(self) -> Checked:
        """The verdict of our own replication; None if the rule was not replicated."""
        return CHECKED.get(self.name)


RULES = (
    Rule(
        "tapt_gains",
        "moderate",
        "DSP table 5: TAPT gains on all 8 tasks, by .5 (RCT, IMDB) to 4.4 (ACL-ARC)",
        findings.tapt_gains,
    ),
    Rule(
        "tapt_is_cheap",
        "strong",
        "DSP table 9: on RCT-500 TAPT takes 200 steps on 80 KB, DAPT 12,500 steps on 47 GB, about 1/60",
        findings.tapt_is_cheap,
    ),
    Rule(
        "selection_gains",
        "moderate",
        "DSP table 8: 50 neighbours of each example add .7 (ChemProt), 1.0 (RCT-500) and 3.3 (ACL-ARC) to TAPT, 500 "
        "neighbours .7, 1.9 and 8.1; DAPT is 1.6, 2.7 and 8.0 above TAPT",
        findings.selection_gains,
    ),
    Rule(
        "selection_is_cheap",
        "strong",
        "DSP table 9: on RCT-500 TAPT with 50 neighbours takes 1,100 steps on 3 MB, DAPT 12,500 steps on 47 GB",
        findings.selection_is_cheap,
    ),
    Rule(
        "pool_is_too_small",
        "weak",
        "DSP tables 7 and 8: on RCT-500 TAPT on the whole unlabelled pool (Curated-TAPT) scores 83.4, DAPT 82.5",
        findings.pool_is_too_small,
    ),
    Rule(
        "domain_is_near",
        "moderate",
        "DSP table 3: DAPT gains on 7 of 8 tasks, by .4 (RCT, IMDB) to 12.4 (ACL-ARC), and is even on AGNews",
        findings.domain_is_near,
    ),
    Rule(
        "domain_is_far",
        "strong",
        "DSP table 3: on an irrelevant domain DAPT is below no adaptation on 5 of 8 tasks (HyperPartisan 86.6 -> "
        "76.4), and below the right domain on all 8",
        findings.domain_is_far,
    ),
    Rule(
        "domain_is_new",
        "weak",
        "DSP tables 3 and 12: RoBERTa's loss is 1.19 on its own text and 1.63 on CS papers, where DAPT gains 3.5 and "
        "12.4; but 2.10 on reviews, where it gains .4 and 1.4",
        findings.domain_is_new,
    ),
    Rule(
        "domain_is_known",
        "weak",
        "DSP tables 3 and 12: RoBERTa's loss is 1.19 on its own text and 1.08 on news, where DAPT gains 0 (AGNews) and "
        "1.6 (HyperPartisan)",
        findings.domain_is_known,
    ),
    Rule(
        "both_are_best",
        "moderate",
        "DSP table 5: DAPT+TAPT has the best mean on 7 of 8 tasks, .1 to .5 above the next; on HyperPartisan TAPT has "
        "the best mean",
        findings.both_are_best,
    ),
    Rule(
        "corpus_is_small",
        "moderate",
        "DSP tables 8 and 9: some 3 MB of random domain text add -.7 (ChemProt), +.8 (RCT-500) and +2.3 (ACL-ARC) to "
        "TAPT; DAPT there means 47 GB",
        findings.corpus_is_small,
    ),
    Rule(
        "pool_is_curated",
        "moderate",
        "DSP tables 5, 7 and 8: Curated-TAPT 83.4 against TAPT 79.8 on RCT-500, 95.7 against 95.5 on IMDB, 89.9 "
        "against 90.4 on HyperPartisan",
        findings.pool_is_curated,
    ),
    Rule(
        "tasks_are_apart",
        "strong",
        "DSP table 6: TAPT on another task of the same domain scores .2 to 8.2 below TAPT on the task itself",
        findings.tasks_are_apart,
    ),
    Rule(
        "cheap_answers_first",
        "moderate",
        "LM-Cocktail, arXiv 2311.13534: fine-tuning an encoder changes its score on its task from 71.8 to 76.0 and on "
        "others from 49.8 to 48.5; interpolation with the base has 74.8 and 50.0; replay: arXiv 2403.08763",
        findings.cheap_answers_first,
    ),
    Rule(
        "dapt_forgets",
        "moderate",
        "DSP table 12: DAPT raises the loss on RoBERTa's own text from 1.19 to 1.33 (news) up to 2.07 (reviews); "
        "replay of earlier text, with a new learning-rate schedule, matches training anew: arXiv 2403.08763",
        findings.dapt_forgets,
    ),
    Rule(
        "words_are_cut",
        "weak",
        "exBERT (2020.findings-emnlp.129) adds a biomedical vocabulary to BERT; fertility as in arXiv 2012.15613",
        findings.words_are_cut,
    ),
    Rule(
        "task_is_small",
        "moderate",
        "DSP table 3: on ACL-ARC (1,688 examples) five seeds of RoBERTa have a standard deviation of 5.8",
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
        "arXiv 1908.10084: models for sentence embeddings are fine-tuned by siamese networks, which drop the head",
        findings.head_is_missing,
    ),
    Rule(
        "vectors_are_kept",
        "moderate",
        "TSDAE, arXiv 2104.06979, as sentence-transformers reports it: mean of four tasks 52.3 without adaptation, "
        "55.9 with MLM and 56.5 with TSDAE; retrieval 45.2, 46.7 and 49.2",
        findings.vectors_are_kept,
    ),
    Rule(
        "phases_are_published",
        "moderate",
        "arXiv 2412.13663 releases checkpoints of the stable phase for this; BioClinical ModernBERT (arXiv 2506.10896)"
        " goes on from one with 30%, then 15% masking",
        findings.phases_are_published,
    ),
    Rule(
        "detour_may_help",
        "weak",
        "arXiv 2605.12438: .3 to .8 points above MLM on 11 English biomedical tasks (ModernBERT, 55 billion tokens),"
        " and 1.2 to 2.8 on 8 French ones (ModernCamemBERT)",
        findings.detour_may_help,
    ),
    Rule(
        "optimizer_differs",
        "weak",
        "the optimizer's moments follow the scale of the gradients, for which pre-training chose them: RoBERTa found"
        " beta2 .98 more stable than .999 with large batches (arXiv 1907.11692, section 3.1)",
        findings.optimizer_differs,
    ),
    Rule(
        "documents_are_padded",
        "moderate",
        "arXiv 2107.02027: of rows of 512 tokens of Wikipedia half is padding, and packing trains BERT 2 times faster",
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
        "arXiv 2410.10739: continued pre-training of an instruct model loses up to 10 points of instruction following,"
        " which adding the residual to the adapted base restores",
        findings.instructions_are_forgotten,
    ),
    Rule(
        "decoder_is_rewarmed",
        "strong",
        "arXiv 2403.08763: re-warming, re-decaying and 5% replay for a weak shift (25% for a strong one) match"
        " training anew on all data, at 405 M and 10 B parameters",
        findings.decoder_is_rewarmed,
    ),
)
