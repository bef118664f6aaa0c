"""Trains a small model on a first domain and then on a second domain, for the benchmarks of DAS."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapt.config import ObjectiveConfig, TrainingConfig
from adapt.method.base import Method
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_text_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch, Objective
from adapt.train.loop import Loop
from adapt.train.model_options import apply_options, resolve
from adapt.train.schedule import learning_rate
from benchmarks.plain import PlainEngine
from benchmarks.texts import columns_of, packed_rows

FILES = {"first": "biomed_pubmed", "second": "reviews_imdb", "general": "general_wikitext2"}
LENGTH, STEP_ROWS = 128, 32
HELD_OUT, MEASURED = 256, 640
"""Number of held-out rows, and number of rows for measuring importance."""
PRECISION = resolve("auto", torch.device("cpu"))
CHARACTERS = 8
"""Number of characters per token. It is overestimated, so that enough text is read."""


@dataclass(frozen=True)
class Rows:
    """Rows of packed text without padding."""

    tokens: np.ndarray
    starts: np.ndarray
    """Whether each token starts a document. It has the shape of `tokens`, [rows, LENGTH]."""

    def columns(self, numbers: np.ndarray) -> dict[str, Any]:
        """Returns the rows with these indices, in the form that the training loop expects."""
        return columns_of(self.tokens[numbers], self.starts[numbers], np.full(len(numbers), LENGTH), numbers)

    def batches(self, numbers: np.ndarray) -> list[tuple[int, Batch]]:
        """Returns the rows with these indices in batches of `STEP_ROWS` rows, each with its index."""
        passes = np.split(numbers, range(STEP_ROWS, len(numbers), STEP_ROWS))
        return [(number, Batch.of(self.columns(each))) for number, each in enumerate(passes)]

    @property
    def held_out(self) -> np.ndarray:
        """Returns the indices of the last rows, which no training step uses."""
        return np.arange(len(self.tokens))[-HELD_OUT:]

    def drawn(self, count: int, seed: int) -> np.ndarray:
        """Draws random indices of rows that are not held out."""
        return np.random.default_rng(seed).permutation(len(self.tokens) - HELD_OUT)[:count]


@dataclass(frozen=True)
class Domains:
    """The texts, the initial model, and the settings of its training."""

    base: Path
    training: TrainingConfig
    texts: Mapping[str, Rows]
    """Rows of each text, keyed by the names in `FILES`."""
    objective: Objective

    @classmethod
    def read(cls, data: Path, base: Path, steps: int, seed: int) -> Domains:
        """Reads and tokenizes the first documents of each corpus."""
        tokenizer = load_text_tokenizer(Pretrained(base, base))
        tokens = (steps * STEP_ROWS + MEASURED + HELD_OUT) * LENGTH
        texts = {name: _rows(data / "corpora" / f"{file}.jsonl.gz", tokenizer, tokens) for name, file in FILES.items()}
        training = TrainingConfig(
            max_steps=steps, global_batch_size=STEP_ROWS, sequence_length=LENGTH, learning_rate=5e-4, weight_decay=0.0
        )
        return cls(base, training, texts, make(ObjectiveConfig(), tokenizer, seed))

    def model(self, state: Mapping[str, Tensor] | None = None) -> Any:
        """Returns the initial model in evaluation mode. If weights are given, the model gets these weights."""
        model = load_model(self.base)
        if state:
            model.load_state_dict(state)
        return model

    def train(self, model: Any, text: str, method: Method, seed: int, rate: float = 1.0) -> dict[str, Tensor]:
        """Trains a model that the method has prepared, and returns the weights.

        The learning rate is multiplied by `rate`.
        """
        steps = self.training.max_steps
        assert steps
        apply_options(model.train(), self.training, torch.device("cpu"))
        engine: Any = PlainEngine(model, self.training, PRECISION, 1)
        loop = Loop(engine, self.objective, method, self.training, STEP_ROWS, steps, seed)
        for step, columns in enumerate(self._steps(text, steps, seed)):
            loop.step(columns, step, rate * learning_rate(self.training, step, steps))
        return method.merge(dict(model.state_dict()))

    def _steps(self, text: str, steps: int, seed: int) -> Iterator[dict[str, Any]]:
        rows = self.texts[text].drawn(steps * STEP_ROWS, seed)
        assert len(rows) == steps * STEP_ROWS, f"{text} has {len(rows):,} rows, too few for {steps} steps"
        return (self.texts[text].columns(each) for each in np.split(rows, steps))

    @torch.no_grad()
    def loss(self, model: Any, text: str) -> float:
        """Returns the loss of a model on the held-out rows of a text [nats per predicted token]."""
        model.eval()
        total, predictions = 0.0, 0
        for _, batch in self.texts[text].batches(self.texts[text].held_out):
            corrupted = self.objective.corrupt(batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16"):
                total += self.objective.loss(model, corrupted).item()
            predictions += len(corrupted.targets)
        return total / predictions


def _rows(file: Path, tokenizer: Any, tokens: int) -> Rows:
    """Packs the first documents of a corpus into rows, with approximately the given number of tokens."""
    texts, characters = [], 0
    with gzip.open(file, "rt") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            characters += len(texts[-1])
            if characters > CHARACTERS * tokens:
                break
    ids = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts)]
    return Rows(*packed_rows(ids, LENGTH))
