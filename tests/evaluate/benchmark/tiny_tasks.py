"""Creates tiny decoders, task files and items for tests of standard evaluations."""

from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from adapt.evaluate.benchmark.item_scores import ItemMeasure, TaskItems
from tests.samples import sentences, write
from tests.tokenizers import byte_level

CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}} and"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
ROLLING = """
task: pages
dataset_path: json
dataset_kwargs: {data_files: {test: pages.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
metric_list:
  - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
"""


def tiny_decoder(folder: Path, positions: int = 256) -> Path:
    """Saves a random GPT-2 with its tokenizer."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), **names)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    ids: Any = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 2}
    GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=positions, **ids)).save_pretrained(folder)
    return folder


def task_folder(folder: Path, items: int = 12) -> Path:
    """Writes two task files with their data: `choice` and `pages`."""
    folder.mkdir()
    (folder / "choice.yaml").write_text(CHOICE.format(name="choice", data="choice.jsonl"))
    (folder / "pages.yaml").write_text(ROLLING)
    texts = sentences(3 * items, seed=5, shortest=14, longest=18)
    rows = [
        {"question": texts[n], "choices": [texts[n + items][:20], texts[n + 2 * items][:30]], "answer": n % 2}
        for n in range(items)
    ]
    write(folder / "choice.jsonl", rows)
    write(folder / "pages.jsonl", [{"page": text} for text in texts[:items]])
    return folder


def items_with(measure: ItemMeasure, count: int, texts: list[list[str]] | None = None, **more: Any) -> TaskItems:
    """Returns the scores of a task with one metric."""
    return TaskItems("harness", count, {"acc": measure}, [str(n) for n in range(count)], texts, **more)


def mean_of(values: Any) -> ItemMeasure:
    """Returns a measure whose score is the mean of values."""
    columns = [float(value) for value in values]
    return ItemMeasure.of(sum(columns) / len(columns), True, "mean", columns)
