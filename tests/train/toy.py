"""Trains a tiny BERT with our engine and loop, and in the same way in plain torch."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from transformers import BertConfig, BertForMaskedLM, DebertaV2Config, DebertaV2ForMaskedLM

from adapt.config import ObjectiveConfig, TrainingConfig
from adapt.method.base import Method
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.packing.padded import document_rows
from adapt.objective.masking import MaskedLanguageModelling
from adapt.objective.objective import Batch
from adapt.train.engine import Engine, Offload
from adapt.train.loop import Loop
from adapt.train.model_options import Precision
from adapt.train.schedule import branch_step
from adapt.train.training_run import Progress

VOCABULARY, LENGTH, GLOBAL_BATCH = 61, 12, 8


@dataclass(frozen=True)
class Case:
    """Settings of one training run."""

    zero_stage: int = 0
    steps: int = 4
    micro_batch: int = 2
    global_batch: int = GLOBAL_BATCH
    precision: Precision = "fp32"
    offload: Offload = "none"
    dropout: float = 0.0
    is_padded: bool = False
    """Whether the model is a DeBERTa, which computes documents as padded rows, instead of a BERT."""
    frozen: str = ""
    """Parameters whose names contain this text are not trained. If empty, all parameters are trained."""
    training: dict[str, Any] = field(default_factory=dict)
    load: Path | None = None
    save: Path | None = None
    save_after: int | None = None
    """Number of steps after which the checkpoint is saved, while training continues. The last step if None."""

    def is_saved(self, done: int) -> bool:
        """Returns whether a checkpoint is written after this number of steps."""
        return self.save is not None and done == (self.save_after or self.steps)


class Outcome(NamedTuple):
    """Final state of a run on one rank."""

    weights: dict[str, torch.Tensor]
    """Final weights on rank 0, and an empty mapping on other ranks."""
    moments: dict[str, tuple[torch.Tensor, torch.Tensor]]
    norms: list[float]
    losses: list[float]
    progress: Progress
    gradients: Sequence[dict[str, torch.Tensor]] = ()
    """Gradients of each step before clipping. Only `reference` sets them."""


def settings(**changes: Any) -> TrainingConfig:
    """Returns training settings with which every step is clipped, because the gradient norm is above 1.

    Epsilon is large enough that AdamW ignores rounding errors in gradients.
    """
    return TrainingConfig(**{"weight_decay": 0.1, "epsilon": 1e-5, "max_gradient_norm": 0.5, **changes})


def model(dropout: float = 0.0, frozen: str = "", is_padded: bool = False) -> Any:
    """Returns a model with the same random weights in each call. Its layers' sizes are not divisible by two ranks."""
    toy = copy.deepcopy(_built(dropout, is_padded))
    for name, parameter in toy.named_parameters():
        parameter.requires_grad_(not frozen or frozen not in name)
    return toy


@cache
def _built(dropout: float, is_padded: bool) -> Any:
    """Builds the model once per process, because checking the model takes a tenth of the time of a training run."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 10,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 15,
        "max_position_embeddings": LENGTH,
        "initializer_range": 0.2,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        toy: Any = (
            DebertaV2ForMaskedLM(DebertaV2Config(**sizes, **relative))
            if is_padded
            else BertForMaskedLM(BertConfig(**sizes))
        )
    keep_documents_apart(toy.eval())
    toy.unused = torch.nn.Parameter(torch.ones(3, 5))  # a parameter without a gradient, which still decays
    return toy.train()


def with_room(toy: Any, tokens: int) -> Any:
    """Adds `tokens` position embeddings to the model, and returns the model."""
    embeddings = toy.bert.embeddings
    old = embeddings.position_embeddings.weight.data
    more = torch.nn.Embedding(len(old) + tokens, old.shape[1])
    more.weight.data = torch.cat((old, old[:tokens].flip(0)))
    embeddings.position_embeddings = more
    toy.config.max_position_embeddings = count = len(more.weight)
    embeddings.token_type_ids = torch.zeros(1, count, dtype=torch.int64)
    embeddings.position_ids = torch.arange(count)[None]
    return toy


def columns(step: int, rank: int = 0, world: int = 1, size: int = GLOBAL_BATCH) -> dict[str, np.ndarray]:
    """Returns a rank's share of the global batch of a step."""
    draw = np.random.default_rng(step)
    share = slice(rank * size // world, (rank + 1) * size // world)
    batch = {
        "tokens": draw.integers(5, VOCABULARY, (size, LENGTH)),
        "lengths": draw.integers(3, LENGTH + 1, size),
        "epochs": np.zeros(size, np.int64),
        "rows": step * size + np.arange(size),
        "starts": np.arange(LENGTH) == np.zeros((size, 1)),
    }
    return {name: values[share] for name, values in batch.items()}


def feed(first: int, last: int, size: int = GLOBAL_BATCH) -> Iterator[dict[str, np.ndarray]]:
    """Yields this rank's shares of the batches of the steps `first` to `last` - 1."""
    return (columns(step, dist.get_rank(), dist.get_world_size(), size) for step in range(first, last))


class Objective(MaskedLanguageModelling):
    """Masked language modelling with a tokenizer that has no words."""

    def __init__(self) -> None:
        super().__init__(ObjectiveConfig(mask_fraction=0.4), Tokenizer(), seed=1)


class Tokenizer:
    """Imitates a tokenizer with the attributes that the objective needs."""

    mask_token_id = 4
    cls_token_id = 2
    bos_token_id = None
    sep_token_id = eos_token_id = 3
    pad_token_id = 0
    all_special_ids = (0, 1, 2, 3, 4)

    def __len__(self) -> int:
        return VOCABULARY

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(VOCABULARY)}


def build(case: Case, objective: Objective | None = None, method: Method | None = None) -> Loop:
    """Returns the loop of a case with its engine, on the calling rank."""
    share = case.global_batch // dist.get_world_size()
    training = settings(**case.training)
    toy = model(case.dropout, case.frozen, case.is_padded)
    passes = share // case.micro_batch
    if case.zero_stage == 3 and (rows := document_rows(toy)):
        rows.compute_at_once()
    engine = Engine(toy, training, case.zero_stage, case.precision, case.micro_batch, passes, case.offload)
    return Loop(
        engine,
        objective or Objective(),
        method or Method(),
        training,
        case.micro_batch,
        case.steps,
        seed=5,
        branch_step=branch_step(training, case.steps),
    )


def rate(step: int) -> float:
    """Returns a learning rate that differs between steps."""
    return 1e-2 / (1 + step)


def train(case: Case) -> Outcome:
    """Runs a case on the calling rank, and returns its final state."""
    loop = build(case)
    engine = loop.engine
    progress = Progress(**engine.load(case.load)) if case.load else Progress()
    norms, losses = [], []
    for number, share in enumerate(feed(progress.step, case.steps, case.global_batch), progress.step):
        loss, tokens, norm = loop.step(share, number, rate(number))
        dist.all_reduce(loss)
        progress.step += 1
        progress.tokens += tokens
        norms.append(norm)
        losses.append(loss.item())
        if case.is_saved(progress.step):
            engine.save(case.save, vars(progress))
    return Outcome(engine.full_state(), moments(engine), norms, losses, progress)


def moments(engine: Engine) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Returns AdamW's two moments of each trained parameter, unsharded. All ranks must call this function."""
    from deepspeed.utils import safe_get_full_optimizer_state

    zero = engine._engine.optimizer
    if engine.zero_stage in (1, 2):  # DeepSpeed 0.19 links only the parameters of the first group to their state
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()

    def of(parameter: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor]:
        if engine.zero_stage == 0:
            state = zero.state[parameter]
            return state["exp_avg"].clone(), state["exp_avg_sq"].clone()
        first, second = (safe_get_full_optimizer_state(parameter, key) for key in ("exp_avg", "exp_avg_sq"))
        return first, second

    named = engine._engine.module.named_parameters()
    return {name: of(parameter) for name, parameter in named if parameter.requires_grad}


def reference(
    case: Case,
    rates: list[float] | None = None,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    factors: dict[str, float] | None = None,
) -> Outcome:
    """Runs a case in plain torch in one process: one pass per global batch, and torch's simplest AdamW.

    `factors` are factors of the learning rate, keyed by parameter name. The default factor is 1.
    """
    toy, training, masking = model(frozen=case.frozen, is_padded=case.is_padded), settings(**case.training), Objective()
    trained = {name: p for name, p in toy.named_parameters() if p.requires_grad}
    adamw = optimizer(
        [{"params": [p], "weight_decay": training.weight_decay if p.ndim > 1 else 0.0} for p in trained.values()],
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        foreach=False,
    )
    norms, losses, gradients, tokens = [], [], [], 0
    for number in range(case.steps):
        batch = Batch.of(columns(number))
        seen = masking.corrupt(batch)
        logits = toy(input_ids=seen.input_ids, attention_mask=seen.real).logits[seen.positions]
        loss = torch.nn.functional.cross_entropy(logits, seen.targets, reduction="sum") / len(seen.targets)
        adamw.zero_grad()
        loss.backward()
        toy.unused.grad = torch.zeros_like(toy.unused)
        gradients.append({name: p.grad.clone() for name, p in trained.items()})
        norm = torch.cat([p.grad.flatten() for p in trained.values()]).norm()
        if 0 < training.max_gradient_norm < norm:
            for parameter in trained.values():
                parameter.grad *= training.max_gradient_norm / norm
        for group, name in zip(adamw.param_groups, trained, strict=True):
            group["lr"] = (rates[number] if rates else rate(number)) * (factors or {}).get(name, 1.0)
        adamw.step()
        norms.append(norm.item())
        losses.append(loss.item())
        tokens += int(batch.lengths.sum())
    averages = {name: (adamw.state[p]["exp_avg"], adamw.state[p]["exp_avg_sq"]) for name, p in trained.items()}
    weights = {name: value.detach().clone() for name, value in toy.state_dict().items()}
    return Outcome(weights, averages, norms, losses, Progress(case.steps, tokens), gradients)


def assert_close(outcome: Outcome, expected: Outcome, last: int | None = None) -> None:
    """Checks that two outcomes are equal up to the rounding of fp32.

    If the run was resumed, its norms and losses are compared with the `last` values of the expected outcome.
    """
    close = torch.testing.assert_close
    assert outcome.weights.keys() == expected.weights.keys()
    for name, weight in outcome.weights.items():
        # Softmax ignores the biases of keys. Their gradient is a rounding error, which AdamW turns into a step.
        close(weight, expected.weights[name], rtol=1e-4, atol=3e-5 if name.endswith("key.bias") else 1e-5)
    close(outcome.moments, expected.moments, rtol=1e-4, atol=1e-6)
    kept = slice(-last if last else None, None)
    close(outcome.norms, expected.norms[kept], rtol=1e-4, atol=0)
    close(outcome.losses, expected.losses[kept], rtol=1e-5, atol=0)
    assert outcome.progress.tokens == expected.progress.tokens
