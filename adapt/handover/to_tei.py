"""Kind `tei` of `export.kinds`: a folder that Text Embeddings Inference (TEI) serves.

TEI reads config.json, tokenizer.json, the weights in safetensors, the pooling in 1_Pooling/config.json and the longest
input in sentence_bert_config.json. It stops at the start if one of them is missing or says what it does not support
(`router/src/lib.rs` and `backends/candle/src/lib.rs` of its repository). The server itself is a binary that no Python
index has, so dontstop checks the files, and no test starts it.
"""

from pathlib import Path

from adapt.config import Config
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver, ModelKind
from adapt.handover.to_sentence_transformers import pooling_files
from adapt.model.locate import SENTENCE_LENGTHS, model_files, read_json
from adapt.support.errors import ConfigError, ModelError

SERVED = (
    *("bert", "camembert", "distilbert", "gemma3_text", "mistral", "modernbert", "mpnet", "nomic_bert"),
    *("qwen2", "qwen3", "roberta", "xlm-roberta"),
)
"""Values of model_type in config.json that TEI 1.8 serves as models for vectors."""
POOLINGS = ("cls", "mean", "lasttoken")
"""Poolings of TEI, by their names in sentence-transformers."""
FAST = "tokenizer.json"
IMAGE = "ghcr.io/huggingface/text-embeddings-inference:cpu-1.8"


class ToTei(ExportKind):
    """Served by Text Embeddings Inference."""

    needs_vectors = True

    def refuse(self, config: Config, model: Path) -> None:
        """Refuses architectures that TEI does not serve."""
        kind = ModelKind.of(model)
        if kind.model_type not in SERVED:
            raise ConfigError(
                f"export.kinds: Text Embeddings Inference does not serve {kind.model_type} models",
                f"remove tei from export.kinds; it serves {', '.join(SERVED)}",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Checks the files that TEI reads.

        Raises:
            ModelError: a file is missing, the pooling is none of TEI's, or the longest input is unknown.
        """
        folder, vectors = exported.folder, exported.vectors
        if vectors is None or vectors.pooling not in POOLINGS:
            raise ModelError(
                f"Text Embeddings Inference has no pooling {vectors.pooling if vectors else ''}",
                "set export.sentence_transformers to mean or cls",
            )
        if not (folder / FAST).is_file():
            raise ModelError(
                f"{folder} has no {FAST}, which Text Embeddings Inference needs", "remove tei from export.kinds"
            )
        if "max_seq_length" not in read_json(folder / SENTENCE_LENGTHS):
            raise ModelError(
                f"{folder / SENTENCE_LENGTHS} names no max_seq_length, which Text Embeddings Inference needs",
                "set export.max_length",
            )
        files = {str(file.relative_to(folder)) for file in model_files(folder)} | {*pooling_files(exported)}
        return HandedOver("tei", sorted(files), note="The files were checked, but no server was started.")

    def example(self, exported: ExportedModel) -> str:
        """Returns the commands that start the server and ask it for a vector."""
        return f"""\
Vectors from a server, with Text Embeddings Inference (run in the folder of this file):

```sh
docker run -p 8080:80 -v "$PWD:/model" {IMAGE} --model-id /model
curl 127.0.0.1:8080/embed -H 'Content-Type: application/json' -d '{{"inputs": "a sentence"}}'
```"""
