"""Checks the conditions of the rules about the model, such as whether it is trained as it was pre-trained."""

from dataclasses import dataclass

from adapt.advise.findings import Case, Finding
from adapt.config import TrainingConfig


@dataclass(frozen=True)
class Pretraining:
    """The optimizer settings with which a family of models was pre-trained, as published."""

    optimizer: str
    beta1: float
    beta2: float
    epsilon: float
    source: str

    def differences(self, training: TrainingConfig) -> list[str]:
        """Returns the options that set the published values, one for each setting in which a training differs."""
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
"""The published optimizers, keyed by `model_type` in config.json."""


def head_is_missing(case: Case) -> Finding | None:
    """Says how to train a model without a language-model head of its own (`model.head: new`)."""
    if case.config.model.head != "new" and case.evidence.has_head:
        return None
    first = "" if case.config.model.head_warmup_steps else ": train the head alone at first (model.head_warmup_steps)"
    missing = "" if case.evidence.has_head else "the model has no language-model head (model.head new adds one): "
    return Finding(
        f"{missing}the model gets a new head with random weights, so the losses above say nothing about it{first}"
    )


def vectors_are_kept(case: Case) -> Finding | None:
    """Recommends TSDAE, an objective that trains sentence vectors, for models of sentence-transformers."""
    if not case.model.is_sentence_model:
        return None
    return Finding(
        "the model makes sentence vectors: train these after MLM (objective.kind tsdae), measure them on pairs"
        " (retrieval.pairs), and export them (export.sentence_transformers)"
    )


def phases_are_published(case: Case) -> Finding | None:
    """Recommends the two published phases for ModernBERT."""
    if case.model.kind != "modernbert" or case.config.training.phases:
        return None
    return Finding(
        "ModernBERT continues from a checkpoint of its stable phase in two phases without a warm-up (training.phases):"
        " 30% masking at a constant rate, then 15% while the rate falls (dontstop recipes modernbert_dapt)"
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
        f"{case.model.kind} was pre-trained with other optimizer settings ({published.source}): {' '.join(changes)}"
    )


def documents_are_padded(case: Case) -> Finding | None:
    """Says what training costs if the model cannot pack documents, so that each document is computed as a row."""
    if case.evidence.way == "packed":
        return None
    rows = {
        "shared rows": "rows of several documents with a mask between them",
        "padded": "padded rows",
        "by length": "rows of exactly the same length",
    }[case.evidence.way]
    share = case.evidence.corpus.padding if case.evidence.corpus else None
    cost = f": {share:.0%} of the computed positions would be padding" if share else ""
    return Finding(
        f"the model cannot take several documents in one sequence, so they are computed as {rows}, which is slower"
        f"{cost}"
    )


def replaced_tokens_fit(case: Case) -> Finding | None:
    """Recommends replaced-token detection for models that were pre-trained with this objective."""
    if case.model.kind not in ("electra", "deberta-v2") or case.config.objective.kind == "rtd":
        return None
    return Finding(
        f"{case.model.kind} models are pre-trained by replaced-token detection: continue with it (objective.kind rtd)"
    )


def instructions_are_forgotten(case: Case) -> Finding | None:
    """Advises to adapt the base model of an instruct model, and then to add the instruct weights minus base weights."""
    if not case.model.is_instruct:
        return None
    return Finding(
        "the model follows instructions, which plain text makes it forget: adapt its base model, then add the"
        " difference between the two (dontstop merge, merge.kind residual)"
    )


def decoder_is_rewarmed(case: Case) -> Finding | None:
    """Advises to warm up again and to replay general text if a decoder is trained without one of the two."""
    training = case.config.training
    warm_up = training.warmup_fraction if training.warmup_steps is None else training.warmup_steps
    if not case.model.is_decoder or (case.config.mixture.replays and (warm_up or training.phases)):
        return None
    return Finding(
        "a decoder is trained further with a new warm-up to a smaller peak, a new decay, and 5% to 25% of general text"
        " (dontstop recipes decoder_cpt)"
    )
