"""Keep a fine-tuned model as a folder that transformers alone can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedTokenizerFast,
)

from adapt.errors import ModelError
from adapt.finetune.classifier import Classifier
from adapt.finetune.examples import Examples
from adapt.finetune.settings import SAVABLE
from adapt.model.finite import check_finite
from adapt.model.quiet import quiet
from adapt.model.start import MODEL_FOLDER
from adapt.model.tokenizer import load_config
from adapt.runner.files import folder_aside
from adapt.task.data import Facts

_TRIED = 4
_TOLERANCE = 1e-3
_PROBLEMS = {"single_label": "single_label_classification", "multi_label": "multi_label_classification", "tokens": None}


def save_classifier(
    classifier: Classifier,
    start: Path,
    facts: Facts,
    examples: Examples,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
) -> None:
    """Writes `model/` with config.json, model.safetensors and the tokenizer into a folder, whole or not at all.

    Args:
        classifier: in evaluation mode, of a family in `SAVABLE`.
        start: folder of the model that was fine-tuned.
        facts: of the task; its classes become the config's.
        examples: some, on which transformers' classifier must give our logits.
        tokenizer: the model's.
        folder: where.

    Raises:
        ModelError: transformers' classifier gives other logits, or a weight is not finite.
    """
    with quiet():
        model = _filled(classifier, start, facts)
        for name, parameter in model.named_parameters():
            check_finite(parameter, name, "the fine-tuned model", "lower finetune.learning_rate, and run it again")
        _check(model, classifier, examples)
        with folder_aside(folder / MODEL_FOLDER) as aside:
            model.save_pretrained(aside)
            tokenizer.save_pretrained(aside)
            for file in aside.glob("*.safetensors"):  # safetensors lets only the owner read them
                file.chmod(0o644)


def _filled(classifier: Classifier, start: Path, facts: Facts) -> Any:
    """transformers' own classifier, on the CPU, with our weights."""
    config: Any = load_config(start)
    head: Any = classifier.head
    config.id2label = dict(enumerate(facts.labels))
    config.label2id = {label: number for number, label in enumerate(facts.labels)}
    config.problem_type = _PROBLEMS[facts.kind]
    config.classifier_dropout = head.dropout.p
    factory: Any = AutoModelForTokenClassification if facts.kind == "tokens" else AutoModelForSequenceClassification
    model = factory.from_config(config, dtype=torch.float32)
    hidden, outer = SAVABLE[config.model_type]
    layers = {"out": "classifier"} if facts.kind == "tokens" else {"dense": hidden, "out": outer}
    state = {f"{model.base_model_prefix}.{name}": tensor for name, tensor in classifier.encoder.state_dict().items()}
    for ours, theirs in layers.items():
        layer = head.get_submodule(ours)
        state |= {f"{theirs}.{name}": tensor for name, tensor in layer.state_dict().items()}
    model.load_state_dict({name: tensor.cpu() for name, tensor in state.items()})
    return model.eval()


@torch.inference_mode()
def _check(model: Any, classifier: Classifier, examples: Examples) -> None:
    device = next(classifier.parameters()).device
    for number in range(min(_TRIED, len(examples))):
        batch = examples.batch(np.array([number]), device)
        ours = classifier(batch).float().cpu()
        alone = slice(int(examples.ends[number + 1] - examples.ends[number]))  # leaves out the padding
        options = {"token_type_ids": batch.segments[:, alone].cpu()} if model.config.type_vocab_size > 1 else {}
        logits: Tensor = model(input_ids=batch.packed.input_ids[:, alone].cpu(), **options).logits
        theirs = logits if batch.places is None else logits[0, batch.places.cpu()]
        if not torch.allclose(theirs, ours, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ModelError(
                f"{type(model).__name__} does not give the logits of the model that was fine-tuned",
                "leave finetune.save_model off, and report this",
            )
