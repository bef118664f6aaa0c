"""Modes `fine_tune` and `lora`: train the model on the task, all of it or low-rank additions to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapt.config import FinetuneConfig
from adapt.finetune.classifier import Classifier, new_classifier
from adapt.finetune.examples import ExampleBatch
from adapt.finetune.loop import Course, History, train
from adapt.finetune.loss import TaskLoss, balanced
from adapt.finetune.place import FinetunePlace
from adapt.finetune.predict import in_passes
from adapt.finetune.problem import Problem
from adapt.finetune.settings import FinetuneSettings
from adapt.finetune.words import train_all_words, train_used_words


@dataclass(frozen=True)
class Learned:
    """What is left of a training, whatever the mode."""

    predict: Callable[[str], np.ndarray]
    """Takes the name of a split and gives the probabilities of its units, float32 [U, classes]."""
    history: History
    trained_parameters: int
    classifier: Classifier | None = None
    """The trained model; None if the mode leaves the encoder as it is."""


class Tuning:
    """A classifier that is to be trained, and what its loop needs.

    Args:
        encoder: on the CPU; it is changed and moved.
        problem: the task.
        settings: resolved.
        seed: of the new layers and of dropout.
        place: where to compute.
    """

    def __init__(
        self, encoder: PreTrainedModel, problem: Problem, settings: FinetuneSettings, seed: int, place: FinetunePlace
    ) -> None:
        finetune, facts = settings.finetune, problem.facts
        self.problem, self.place = problem, place
        torch.manual_seed(seed)
        if finetune.mode == "lora":
            add_lora(encoder, finetune)
        else:
            train_used_words(encoder, problem.examples["train"].tokens)
        classifier = new_classifier(encoder, finetune, settings.pooling, facts.kind, len(facts.labels))
        self.classifier = classifier.to(place.device)
        self._loss = loss_of(problem, finetune, place)
        self.masses = self._loss.masses(problem.examples["train"])

    def loss(self, chosen: np.ndarray) -> Tensor:
        """The mean loss of the train examples with these indices."""
        batch = self.problem.examples["train"].batch(chosen, self.place.device)
        with self.place.autocast():
            logits = self.classifier(batch)
        return self._loss(logits, batch.targets)

    def predict(self, name: str) -> np.ndarray:
        """The probabilities of the units of a split, float32 [U, classes]."""
        with self.place.autocast():
            return in_passes(self._probabilities, self.problem.examples[name], self.place.device).numpy()

    def _probabilities(self, batch: ExampleBatch) -> Tensor:
        return self._loss.probabilities(self.classifier(batch))


def tune_classifier(
    encoder: PreTrainedModel, problem: Problem, settings: FinetuneSettings, seed: int, place: FinetunePlace
) -> Learned:
    """Trains an encoder and a new head; see `Tuning` and `adapt.finetune.loop`.

    Raises:
        TrainingError: the loss is not finite.
    """
    tuning = Tuning(encoder, problem, settings, seed, place)
    course = Course(
        tuning.classifier,
        tuning.loss,
        lambda: problem.score("dev", tuning.predict("dev")),
        tuning.masses,
    )
    history = train(course, settings, seed, place.loss_scaling)
    trained = trained_numbers(tuning.classifier)
    train_all_words(encoder)
    return Learned(tuning.predict, history, trained, tuning.classifier)


def add_lora(encoder: PreTrainedModel, finetune: FinetuneConfig) -> None:
    """Freezes an encoder and adds low-rank matrices to each of its linear layers (arXiv 2106.09685), in place."""
    from peft import LoraConfig, inject_adapter_in_model

    encoder.requires_grad_(False)
    wanted = LoraConfig(
        r=finetune.lora_rank,
        lora_alpha=finetune.lora_alpha,  # type: ignore[arg-type]  # a factor; it need not be whole
        target_modules="all-linear",
    )
    inject_adapter_in_model(wanted, encoder)


def loss_of(problem: Problem, finetune: FinetuneConfig, place: FinetunePlace) -> TaskLoss:
    """The loss of a task, with the configured weights of its classes."""
    if finetune.class_weights == "none":
        return TaskLoss(problem.facts.kind)
    weights = balanced(problem.examples["train"].targets, len(problem.facts.labels))
    return TaskLoss(problem.facts.kind, weights.to(place.device))


def trained_numbers(module: nn.Module) -> int:
    """The number of parameters that are trained."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
