"""Makes large files of real text for the corpus benchmarks."""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.texts import SMALL


def write_jsonl(path: Path, megabytes: float, data: Path | None, salt: str = "") -> Path:
    """Writes documents of the shared corpora, or of Python's documentation.

    Documents are repeated until the file is large enough. Each text begins with the salt and a number, so that all
    texts differ.
    """
    size = 0
    with path.open("w") as file:
        for number, text in enumerate(itertools.cycle(_texts(data))):
            line = json.dumps({"text": f"{salt}{number} {text}"}, ensure_ascii=False)
            file.write(line + "\n")
            size += len(line.encode()) + 1
            if size >= megabytes * 1e6:
                return path
    return path


def some_texts(megabytes: float, data: Path | None) -> list[str]:
    """Returns about `megabytes` MB of texts, sampled evenly from the shared corpora or from Python's documentation.

    Each document occurs once. If there is too little text, documents are repeated, with a number before each repeat.
    """
    texts = _texts(data)
    size = sum(len(text.encode()) for text in texts) / 1e6
    again = [f"{number} {text}" for number in range(int(megabytes / size)) for text in texts]
    return [*texts, *again][:: max(1, round(size / megabytes))]


def _texts(data: Path | None) -> list[str]:
    return list(_shared(data)) if data else _documentation()


def _shared(data: Path) -> Iterator[str]:
    for file in sorted((data / "corpora").glob("*.jsonl.gz")):
        with gzip.open(file, "rt") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def _documentation() -> list[str]:
    from pydoc_data.topics import topics

    return [" ".join(text.split()) for text in topics.values()]


def model_folder(folder: Path, models: Path | None) -> Path:
    """Returns the folder of the model whose tokenizer is used: the shared small model, or a new random model."""
    if models:
        return models / SMALL
    from transformers import BertConfig, BertForMaskedLM

    from benchmarks.texts import _own_tokenizer

    tokenizer = _own_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
