"""Modes `feature_extraction` and `linear_probe`: the encoder stays as it is, its states are computed once.

To Tune or Not to Tune? (Peters et al., W19-4302) compares such features with fine-tuning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapt.finetune.classifier import layer_states, unit_states, width
from adapt.finetune.examples import ExampleBatch, Examples
from adapt.finetune.head import MixedHead
from adapt.finetune.loop import Course, History, train
from adapt.finetune.place import FinetunePlace
from adapt.finetune.predict import in_passes
from adapt.finetune.problem import Problem
from adapt.finetune.settings import FinetuneSettings
from adapt.finetune.tune import Learned, loss_of, trained_numbers
from adapt.model.outputs.states import last_hidden_state
from adapt.task.data import IGNORED

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

REGULARIZATION = (0.01, 0.1, 1.0, 10.0)
"""Values of scikit-learn's C; the score on dev chooses one."""
ITERATIONS = 1000
UNITS_AT_ONCE = 4096


def extract_features(
    encoder: PreTrainedModel, problem: Problem, settings: FinetuneSettings, seed: int, place: FinetunePlace
) -> Learned:
    """Logistic regression on the units' states in the last layer, standardized; dev chooses its strength.

    The result does not depend on the seed.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def state(batch: ExampleBatch) -> Tensor:
        return unit_states(last_hidden_state(encoder, batch.packed, batch.segments), batch, settings.pooling).float()

    features = {name: values.numpy() for name, values in _computed(encoder, problem, place, state).items()}
    targets = _unit_targets(problem.examples["train"])
    balanced = "balanced" if settings.finetune.class_weights == "balanced" else None

    def fitted(strength: float) -> Pipeline:
        model = LogisticRegression(C=strength, max_iter=ITERATIONS, class_weight=balanced)
        is_multi_label = problem.facts.kind == "multi_label"
        return make_pipeline(StandardScaler(), OneVsRestClassifier(model) if is_multi_label else model).fit(
            features["train"], targets
        )

    def probabilities(model: Pipeline, name: str) -> np.ndarray:
        by_class = np.zeros((len(features[name]), len(problem.facts.labels)), np.float32)
        by_class[:, np.asarray(model.classes_, int)] = model.predict_proba(
            features[name]
        )  # classes that train lacks keep 0
        return by_class

    candidates = [fitted(strength) for strength in REGULARIZATION]
    scores = [problem.score("dev", probabilities(model, "dev")) for model in candidates]
    best = candidates[int(np.argmax(scores))]
    classes = 1 if len(best.classes_) == 2 and targets.ndim == 1 else len(best.classes_)
    trained = classes * (features["train"].shape[1] + 1)
    return Learned(lambda name: probabilities(best, name), History(), trained)


def probe(
    encoder: PreTrainedModel, problem: Problem, settings: FinetuneSettings, seed: int, place: FinetunePlace
) -> Learned:
    """A linear layer on a learned mix of the units' states in all layers, trained like a model.

    Raises:
        TrainingError: the loss is not finite.
    """
    facts, examples = problem.facts, problem.examples
    features = _computed(encoder, problem, place, lambda batch: layer_states(encoder, batch, settings.pooling))
    targets = torch.from_numpy(_unit_targets(examples["train"]))
    units = examples["train"].units
    begins = np.cumsum(units) - units
    torch.manual_seed(seed)
    layers = features["train"].shape[1]
    head = MixedHead(layers, width(encoder), len(facts.labels), settings.finetune.dropout).to(place.device)
    loss = loss_of(problem, settings.finetune, place)

    def batch_loss(chosen: np.ndarray) -> Tensor:
        indices = torch.from_numpy(np.concatenate([np.arange(begins[n], begins[n] + units[n]) for n in chosen]))
        return loss(head(features["train"][indices].to(place.device).float()), targets[indices].to(place.device))

    @torch.inference_mode()
    def predict(name: str) -> np.ndarray:
        parts = features[name].split(UNITS_AT_ONCE)
        predicted = [loss.probabilities(head(part.to(place.device).float())).cpu() for part in parts]
        return torch.cat(predicted).numpy()

    masses = loss.masses(examples["train"])
    course = Course(head, batch_loss, lambda: problem.score("dev", predict("dev")), masses)
    return Learned(predict, train(course, settings, seed), trained_numbers(head))


def _computed(
    encoder: PreTrainedModel, problem: Problem, place: FinetunePlace, function: Callable[[ExampleBatch], Tensor]
) -> dict[str, Tensor]:
    """The function's values for the units of every split, [U, ...], on the CPU."""
    nn.Module.to(encoder, place.device).eval()
    with place.autocast():
        return {name: in_passes(function, examples, place.device) for name, examples in problem.examples.items()}


def _unit_targets(examples: Examples) -> np.ndarray:
    return examples.targets[examples.targets != IGNORED] if examples.by_token else examples.targets
