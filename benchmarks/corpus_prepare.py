"""Measures the speed of preparing a corpus, relative to transformers' script run_mlm and to the tokenizer alone.

Our side is the whole stage `prepare`, from jsonl to token shards, on a running local Ray. The peer is the code of
run_mlm. It loads the same jsonl, then tokenizes and groups texts with `datasets.map` in two processes. The third side
only runs the tokenizer on texts in memory, with one thread per core.
"""

import os
import time
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.common import Options, Result, apart, main, workplace
from benchmarks.corpora import model_folder, write_jsonl
from benchmarks.rounds import alternate

TARGETS = {"ratio_to_datasets": (">=", 4.0), "share_of_tokenizers_rate": (">=", 2.5)}
LENGTH = 512


def measure(options: Options) -> Result:
    """Measures the three sides in turn. No side can use the caches of an earlier measurement."""
    megabytes = 60 if options.quick else 200
    with workplace() as folder:
        model = model_folder(folder / "model", options.models)
        corpus = write_jsonl(folder / "corpus.jsonl", megabytes, options.data)
        places = (folder / str(number) for number in count())
        found = alternate(
            {
                "ours": lambda: apart(ours, model, corpus, next(places)),
                "datasets": lambda: apart(peer, model, corpus, next(places)),
                "tokenizers": lambda: apart(bare, model, corpus),
            }
        )
    result = Result({}, [(who, f"{megabytes / found.middle(who, float):.2f} MB/s") for who in found.found])
    result.details.append(("text", f"{megabytes} MB"))
    result.compare("ratio_to_datasets", found.ratio("datasets", "ours", float))
    result.compare("share_of_tokenizers_rate", found.ratio("tokenizers", "ours", float))
    return result


def ours(model: Path, corpus: Path, root: Path) -> float:
    """Returns the time of the stage `prepare` without the start of Ray [s]."""
    from adapt.config import Config, CorpusConfig, ModelConfig, StorageConfig
    from adapt.job.job_text import domain_text
    from adapt.ray.runtime import connect
    from adapt.runner import ensure
    from adapt.stage.context import Context

    config = Config(
        model=ModelConfig(path=str(model)),
        corpus=CorpusConfig(paths=str(corpus)),
        storage=StorageConfig(root=str(root)),
    )
    connect(config.resources)
    context = Context.of(config)
    began = time.perf_counter()
    ensure(domain_text(context, None).whole, context.store)
    return time.perf_counter() - began


def peer(model: Path, corpus: Path, cache: Path) -> float:
    """Returns the time of run_mlm's preprocessing [s]: loading, tokenizing and grouping the texts."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)

    def tokenize(batch: dict[str, list[str]]) -> Any:
        return tokenizer(batch["text"], return_special_tokens_mask=True)

    def group(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [token for row in rows for token in row] for name, rows in batch.items()}
        total = len(joined["input_ids"]) // LENGTH * LENGTH
        return {
            name: [values[start : start + LENGTH] for start in range(0, total, LENGTH)]
            for name, values in joined.items()
        }

    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    processes = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    rows = load_dataset("json", data_files=str(corpus), split="train", cache_dir=str(cache))
    rows = rows.map(tokenize, batched=True, num_proc=processes, remove_columns=["text"])
    rows.map(group, batched=True, num_proc=processes)
    return time.perf_counter() - began


def bare(model: Path, corpus: Path) -> float:
    """Returns the time of the tokenizer alone, in batches of 1,000 texts on all cores [s]."""
    import json

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ["RAYON_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    began = time.perf_counter()
    for start in range(0, len(texts), 1000):
        _ = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts[start : start + 1000])]
    return time.perf_counter() - began


if __name__ == "__main__":
    main("corpus_prepare", TARGETS, measure)
