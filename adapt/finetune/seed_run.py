"""Runs one fine-tuning inside its Ray task: loads the model, trains on the task, and predicts dev and test."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adapt.config import Config
from adapt.finetune.classifier import save_classifier
from adapt.finetune.examples import Problem
from adapt.finetune.finetune_loop import FinetuneDevice, FinetuneSettings, check_savable
from adapt.finetune.finetune_modes import Learned, extract_features, probe, tune_classifier
from adapt.finetune.metrics import task_scores
from adapt.finetune.ray_task import FinetuneRun, RunResult
from adapt.model.additions.domain_modules import choose_domain, domain_vectors, domains_of, nearest_domains
from adapt.model.architecture import is_detector
from adapt.model.detector import load_discriminator
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import is_decoder, load_config, load_tokenizer, sees_both_sides
from adapt.task.dataset import SPLITS, Facts, Split
from adapt.train.model_options import apply_options
from adapt.train.worker_process import use_threads

MODES = {
    "fine_tune": tune_classifier,
    "lora": tune_classifier,
    "feature_extraction": extract_features,
    "linear_probe": probe,
}

ROUTED_EXAMPLES = 256
"""Largest number of train examples whose mean vector determines the nearest domain."""


def seed_work(run: FinetuneRun, folder: Path) -> RunResult:
    """Calls `finetune_work` in the Ray task. Without a GPU, it uses the CPU cores that the task reserved."""
    if not torch.cuda.is_available():
        use_threads(run.config.finetune.cpus_per_seed)
    return finetune_work(run.config, run.pretrained, Path(run.task), run.seed, folder)


def finetune_work(config: Config, start: Pretrained, task: Path, seed: int, folder: Path) -> RunResult:
    """Fine-tunes a model on a task and tests it. With `finetune.save_model`, the model is written into `folder`.

    Raises:
        ConfigError: `finetune.save_model` is set and the model cannot be saved.
        DataError: a split is empty.
        TrainingError: the loss is not finite.
    """
    begin = time.perf_counter()
    finetune, place = config.finetune, FinetuneDevice.here(config.training.precision)
    of = load_config(start.model, start.trust_remote_code)
    is_turned = sees_both_sides(of)
    causal = is_decoder(of) and not is_turned
    pooling = "last" if causal else "mean" if is_turned else "first"
    settings = FinetuneSettings.of(finetune, start.model, pooling, len(Split.load(task, "train")))
    if finetune.save_model:
        check_savable(settings, start.model, Facts.load(task).kind)
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    closing = {tokenizer.sep_token_id, tokenizer.eos_token_id} - {None}
    problem = Problem.load(task, settings.max_length, closing)
    dropout = config.model.attention_dropout
    if is_detector(start.model):
        model, _ = load_discriminator(start, dropout)
    else:
        model = load_model(start.model, causal, start.trust_remote_code, dropout)
    parts = _domain_parts(model, problem, finetune.domain, place)
    apply_options(model, replace(config.training, compile=False), place.device)
    encoder: Any = model.base_model
    learned = MODES[finetune.mode](encoder, problem, settings, seed, place)
    probabilities = {name: learned.predict(name) for name in ("dev", "test")}
    if finetune.save_model:
        assert learned.classifier
        save_classifier(learned.classifier, start.model, problem.facts, problem.examples["test"], tokenizer, folder)
    metrics = _metrics(problem, settings, learned, probabilities) | {"mode": finetune.mode, "seed": seed, **parts}
    metrics["seconds"] = time.perf_counter() - begin
    return RunResult(
        metrics, learned.history.curve, {name: problem.lines(name, by_unit) for name, by_unit in probabilities.items()}
    )


def _domain_parts(model: Any, problem: Problem, domain: str | None, place: FinetuneDevice) -> dict[str, str]:
    """Activates the model's parts (such as adapters) for the configured domain, or for the domain nearest to the task.

    Returns:
        The domain whose parameters are used, and the nearest domain; empty if the model has none for single domains.

    Raises:
        ModelError: the model has no parameters for the domain.
    """
    known = domains_of(model)
    if known is None:
        if domain is not None:
            choose_domain(model, domain)
        return {}
    train = problem.examples["train"]
    texts = np.split(train.tokens, train.ends[1:-1])[:ROUTED_EXAMPLES]
    vectors = domain_vectors(model.to(place.device), texts)
    nearest = known.names[int(nearest_domains(model, vectors.mean(0, keepdims=True))[0])]
    choose_domain(model, domain or nearest)
    return {"domain": domain or nearest, "nearest_domain": nearest}


def _metrics(
    problem: Problem, settings: FinetuneSettings, learned: Learned, probabilities: dict[str, np.ndarray]
) -> dict[str, Any]:
    facts, test, history = problem.facts, problem.splits["test"], learned.history
    epochs = len(history.curve)
    seen = epochs * len(problem.examples["train"])
    return {
        **task_scores(facts, test.labels, problem.by_example("test", probabilities["test"]), test.leaked),
        "dev_score": problem.score("dev", probabilities["dev"]),
        "metric": facts.metric,
        "epochs": epochs,
        "best_epoch": history.best_epoch,
        "truncated": {name: problem.examples[name].truncated for name in SPLITS},
        "max_length": settings.max_length,
        "examples_per_s": seen / history.seconds if seen else None,
        "trained_parameters": learned.trained_parameters,
        "majority_score": problem.majority_score(),
        "degenerate": problem.degenerate("test", probabilities["test"]),
    }
