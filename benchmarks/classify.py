"""Makes the task of the fine-tuning benchmark (ChemProt or a generated task), and trains on it with the Trainer."""

import gzip
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import quick_precision
from benchmarks.texts import Case as TextCase
from benchmarks.texts import tokenizer_of

BATCH, MAX_LENGTH, WARM_UP = 16, 512, 3
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}


@dataclass(frozen=True)
class Case:
    """A model, and the task that the model is fine-tuned on."""

    size: str
    """Size of the model: `tiny` or `minilm`."""
    data: Path | None
    model: Path | None


def tokenizer(case: Case) -> Any:
    """Loads the model's tokenizer, or trains a new tokenizer."""
    from transformers import AutoTokenizer

    if not case.model:
        return tokenizer_of(TextCase("small", "lines", BATCH, MAX_LENGTH))
    found = AutoTokenizer.from_pretrained(case.model)
    found.backend_tokenizer.no_truncation()
    found.backend_tokenizer.no_padding()
    return found


def examples(case: Case) -> list[tuple[list[int], int]]:
    """Returns token ids and class of each train example, in random order."""
    if case.data:
        with gzip.open(case.data / "tasks/chemprot/train.jsonl.gz", "rt") as lines:
            records = [json.loads(line) for line in lines]
        classes = sorted({record["label"] for record in records})
        texts = [record["text"] for record in records]
        labels = [classes.index(record["label"]) for record in records]
    else:
        texts, labels = made_up()
    encoded = tokenizer(case).backend_tokenizer.encode_batch_fast(texts)
    rows = [(encoding.ids[:MAX_LENGTH], label) for encoding, label in zip(encoded, labels, strict=True)]
    # shuffled, because short runs use only the first examples, and ChemProt's first examples are long
    random.Random(0).shuffle(rows)
    return rows


def made_up() -> tuple[list[str], list[int]]:
    """Generates a task from sentences of Python's documentation. The class says whether a sentence names a function."""
    from pydoc_data.topics import topics

    draw = random.Random(0)
    parts = [" ".join(part.split()) for text in topics.values() for part in text.split("\n\n") if len(part) > 80]
    texts = [" ".join(part.split()[: draw.randint(20, 150)]) for part in parts][:4000]
    return texts, [int("function" in text) for text in texts]


def language_model(case: Case) -> Any:
    """Loads a language model, or makes a random language model of the same size."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    if case.model:
        return BertForMaskedLM.from_pretrained(case.model)
    shape: dict[str, Any] = dict(SHAPES[case.size])
    return BertForMaskedLM(BertConfig(vocab_size=len(tokenizer(case)), **shape))


def peer(case: Case, steps: int) -> dict[str, float]:
    """Fine-tunes with transformers' Trainer. Returns examples_per_s and cpu_s_per_example."""
    import tempfile

    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[tuple[float, float]] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append((time.perf_counter(), time.process_time()))

    rows: list[dict[str, Any]] = [{"input_ids": ids, "labels": label} for ids, label in examples(case)]
    start = language_model(case)
    config = start.config
    config.num_labels = max(row["labels"] for row in rows) + 1
    model = AutoModelForSequenceClassification.from_config(config)
    model.base_model.load_state_dict(start.base_model.state_dict(), strict=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=WARM_UP + steps,
            learning_rate=2e-5,
            warmup_steps=0.06,
            weight_decay=0.01,
            adam_beta2=0.98,
            adam_epsilon=1e-6,
            bf16=quick_precision() == "bf16",
            optim="adamw_torch_fused",
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        watch = Watch()
        collate = DataCollatorWithPadding(tokenizer(case))
        Trainer(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[watch]).train()
    seconds, cpu = (end - begin for end, begin in zip(watch.ends[-1], watch.ends[WARM_UP - 1], strict=True))
    return {"examples_per_s": steps * BATCH / seconds, "cpu_s_per_example": cpu / (steps * BATCH)}
