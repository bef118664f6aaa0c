"""Measures the peer of the training benchmarks: transformers' Trainer, with the recipe of run_mlm or run_clm."""

import time
from typing import Any

from benchmarks.texts import Case, build_model, documents, tokenizer_of


def train(
    case: Case,
    best: bool,
    steps: int,
    warm_up: int,
    by_length: bool = False,
    order: str = "random",
    compiled: bool = False,
) -> dict[str, Any]:
    """Trains a model with the Trainer and measures speed, memory and losses.

    Args:
        case: the model and the text.
        best: whether to use the best settings (bf16 if it is faster, fused AdamW, scaled dot product attention) instead
            of the Trainer's defaults (fp32).
        steps: number of measured steps.
        warm_up: number of steps before the measured steps.
        by_length: whether batches consist of lines of similar length.
        order: order of the examples, `random` or `sequential`.
        compiled: whether to compile the model with torch.compile.

    Returns:
        tokens_per_s without padding, tokens_per_cpu_s (CPU time of all threads), peak_bytes, and losses of all steps.
    """
    import tempfile

    import torch
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments

    from benchmarks.common import peak_bytes, quick_precision

    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[tuple[float, float]] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.ends.append((time.perf_counter(), time.process_time()))

    ids = documents(case)
    rows = _grouped(ids, case.length) if case.mode == "grouped" else [{"input_ids": tokens} for tokens in ids]
    mean = sum(len(row["input_ids"]) for row in rows) / len(rows)
    batch = round(case.tokens_per_step / mean)
    passes = case.rows // (case.micro_batch or case.rows)
    collate = DataCollatorForLanguageModeling(tokenizer_of(case), mlm=not case.causal, mlm_probability=0.15)
    counts: list[int] = []

    def counted(features: list[dict[str, Any]]) -> Any:
        counts.append(sum(len(feature["input_ids"]) for feature in features))
        return collate(features)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch // passes,
            gradient_accumulation_steps=passes,
            max_steps=warm_up + steps,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            weight_decay=0.01,
            adam_beta2=0.98,
            adam_epsilon=1e-6,
            bf16=best and quick_precision() == "bf16",
            optim="adamw_torch_fused",
            torch_compile=compiled,
            use_cpu=not torch.cuda.is_available(),
            train_sampling_strategy="group_by_length" if by_length else order,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        watch = Watch()
        trainer = Trainer(build_model(case), arguments, train_dataset=rows, data_collator=counted, callbacks=[watch])
        trainer.train()
    seconds, cpu = (end - begin for end, begin in zip(watch.ends[-1], watch.ends[warm_up - 1], strict=True))
    measured = counts[warm_up * passes : (warm_up + steps) * passes]
    return {
        "tokens_per_s": sum(measured) / seconds,
        "tokens_per_cpu_s": sum(measured) / cpu,
        "peak_bytes": peak_bytes(),
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
    }


def _grouped(ids: list[list[int]], length: int) -> list[dict[str, list[int]]]:
    """Groups texts as run_mlm does: concatenates all texts, cuts them into blocks and drops the remainder."""
    flat = [token for tokens in ids for token in tokens]
    return [{"input_ids": flat[start : start + length]} for start in range(0, len(flat) - length + 1, length)]
