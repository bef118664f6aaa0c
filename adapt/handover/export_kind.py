"""Defines the base class of kinds of exports (`export.kinds`), and the kinds that need no further files.

Each kind is a library or format for which an exported model is prepared. transformers, sentence-transformers, TEI and
vLLM read the folder without further files, so these kinds only check that the folder has the files that they need, and
list these files. The pooling for sentence-transformers is `export.sentence_transformers`. If this
field is not set, the pooling is that of the objective, else that of the initial model, else `mean`
(`adapt.model.sentence_vectors`).

Text Embeddings Inference (TEI) reads config.json, tokenizer.json, the weights in safetensors, the pooling in
1_Pooling/config.json and the longest input in sentence_bert_config.json. It does not start if one of these files
is missing or requires an unsupported feature (`router/src/lib.rs` and `backends/candle/src/lib.rs` of its repository).
No test starts the server, because it is a binary that is not on PyPI.

vLLM reads the folder of transformers. Its wheel needs a GPU and several GB, so neither dontstop nor its tests
install it. Instead, the check looks for the model's architecture in a copy of vLLM's list of decoders
(`vllm/model_executor/models/registry.py`), and requires the files that vLLM's loader opens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, TaskConfig
from adapt.model import locate, sentence_vectors
from adapt.support.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from adapt.handover.task_kinds import LabelledText
    from adapt.task.labelled_examples import Example


@dataclass(frozen=True)
class ExportedModel:
    """An exported model, to which the kinds of exports add their files."""

    folder: Path
    """Folder in the format of transformers. It also has the files of sentence-transformers if `vectors` is set."""
    config: Config
    vectors: sentence_vectors.SentenceVectors | None = None
    """How the model makes sentence vectors. None if the folder is not for sentence vectors."""
    labelled: LabelledText | None = None
    """Train split of the user's task. None if no kind needs it, or no task is configured."""

    @property
    def is_decoder(self) -> bool:
        """Whether the model predicts the next token."""
        return self.config.objective.kind == "causal"


@dataclass(frozen=True)
class HandedOver:
    """The files of an exported model for one kind of export."""

    kind: str
    files: list[str]
    """Paths of the files that this kind of export uses, relative to the folder of the model."""
    difference: float | None = None
    """Largest absolute difference between the exported files and the model that transformers loads: of outputs for
    `onnx`, of weights for `gguf`. None if the kind reads the same files as transformers, because nothing could differ.
    """
    note: str = ""
    """A sentence with what users must know about the files. Empty if there is nothing to know."""


class ExportKind(ABC):
    """A library or format for which an exported model is prepared."""

    Options: ClassVar[type[Any] | None] = None
    """Dataclass of the kind's options, with a default for each field. None if there are no options."""
    packages: ClassVar[Sequence[str]] = ()
    """Modules that must be importable to write the files."""
    extra: ClassVar[str] = ""
    """Extra of dontstop that installs these packages. Empty if dontstop always has them."""
    needs_vectors: ClassVar[bool] = False
    """Whether the folder must have the files of sentence-transformers. By default, the pooling is mean."""

    learns: ClassVar[bool] = False
    """Whether the kind uses the train split of the user's task, if one is configured."""

    def __init__(self, options: Any = None) -> None:
        self.options = options

    def refuse(self, config: Config, model: Path) -> None:  # noqa: B027  # most kinds accept all models
        """Raises an error before the job starts if the model cannot be exported as this kind.

        By default, all models are accepted.

        Args:
            config: configuration of the job.
            model: folder of the initial model. The exported model has the same architecture.

        Raises:
            ConfigError: the model cannot be exported for this kind.
        """

    def check_task(self, task: TaskConfig) -> list[Example]:
        """Reads and returns the train split of the user's task before the job starts, if the kind uses the split.

        Raises:
            ConfigError, DataError, StorageError: the split cannot be read, or the kind cannot learn from it.
        """
        from adapt.task.labelled_examples import (
            check_split,
        )  # loads pyarrow, which reading a configuration does not need

        return check_split(task, "train").examples

    @abstractmethod
    def write(self, exported: ExportedModel) -> HandedOver:
        """Writes the files of this kind, and checks that they match the model.

        Weights that are already in the folder are used or linked, and not copied.

        Raises:
            ModelError: the files do not have the outputs of the model, or the model cannot be exported.
        """

    def example(self, exported: ExportedModel) -> str:
        """Returns Markdown for the model card: how to load the model. Empty if the card already shows this."""
        return ""


def model_type(model: Path) -> str:
    """Returns the architecture that a model's config.json names, such as `bert`. Empty if it names none."""
    return str(locate.read_json(model / locate.CONFIG).get("model_type", ""))


OWN = (locate.MODULES, locate.SENTENCE_LENGTHS, locate.SENTENCE_SETTINGS)
"""Files of sentence-transformers in the top folder. Further modules, such as the pooling, have subfolders."""
SERVED_BY_TEI = (
    *("bert", "camembert", "distilbert", "gemma3_text", "mistral", "modernbert", "mpnet", "nomic_bert"),
    *("qwen2", "qwen3", "roberta", "xlm-roberta"),
)
"""Values of model_type in config.json that TEI 1.8 supports as embedding models."""
POOLINGS = ("cls", "mean", "lasttoken")
"""Poolings that TEI supports, named as in sentence-transformers."""
FAST = "tokenizer.json"
IMAGE = "ghcr.io/huggingface/text-embeddings-inference:cpu-1.8"
SERVED_BY_VLLM = (
    *("BloomForCausalLM", "FalconForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GemmaForCausalLM"),
    *("GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM", "GptOssForCausalLM"),
    *("GraniteForCausalLM", "LlamaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "MistralForCausalLM"),
    *("MixtralForCausalLM", "Olmo2ForCausalLM", "OlmoForCausalLM", "OPTForCausalLM", "Phi3ForCausalLM"),
    *("PhiForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
    *("StableLmForCausalLM", "Starcoder2ForCausalLM"),
)
"""Classes of text decoders that both transformers and vLLM have."""


class ToTransformers(ExportKind):
    """Lists the files with which transformers loads the folder."""

    def write(self, exported: ExportedModel) -> HandedOver:
        """Lists the files of the model."""
        files = [str(file.relative_to(exported.folder)) for file in locate.model_files(exported.folder)]
        return HandedOver("transformers", files)


def pooling_files(exported: ExportedModel) -> list[str]:
    """Returns the paths of the sentence-transformers files in an exported folder, relative to the folder."""
    modules = [
        str(module["path"]) for module in locate.read_list(exported.folder / locate.MODULES) if isinstance(module, dict)
    ]
    files = [*OWN, *(f"{path}/config.json" for path in modules if path)]
    missing = [name for name in files if not (exported.folder / name).is_file()]
    if missing:
        raise ModelError(f"{exported.folder} lacks {', '.join(missing)}", "run the export again")
    return files


class ToSentenceTransformers(ExportKind):
    """Lists the files with which sentence-transformers loads the folder. The files are written with the model."""

    needs_vectors = True

    def write(self, exported: ExportedModel) -> HandedOver:
        """Lists the files of sentence-transformers."""
        pooling = exported.vectors.pooling if exported.vectors else ""
        return HandedOver("sentence_transformers", pooling_files(exported), note=f"The pooling is {pooling}.")


class ToTei(ExportKind):
    """Checks that Text Embeddings Inference can serve the folder."""

    needs_vectors = True

    def refuse(self, config: Config, model: Path) -> None:
        """Raises an error for architectures that TEI does not support."""
        if model_type(model) not in SERVED_BY_TEI:
            raise ConfigError(
                f"export.kinds: Text Embeddings Inference does not serve {model_type(model)} models",
                f"remove tei from export.kinds; the server supports {', '.join(SERVED_BY_TEI)}",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Checks the files that TEI reads."""
        folder, vectors = exported.folder, exported.vectors
        if vectors is None or vectors.pooling not in POOLINGS:
            raise ModelError(
                f"Text Embeddings Inference does not support the pooling {vectors.pooling if vectors else ''}",
                "set export.sentence_transformers to mean or cls",
            )
        if not (folder / FAST).is_file():
            raise ModelError(
                f"{folder} has no {FAST}, which Text Embeddings Inference needs", "remove tei from export.kinds"
            )
        if "max_seq_length" not in locate.read_json(folder / locate.SENTENCE_LENGTHS):
            raise ModelError(
                f"{folder / locate.SENTENCE_LENGTHS} has no max_seq_length, which Text Embeddings Inference needs",
                "set export.max_length",
            )
        files = {str(file.relative_to(folder)) for file in locate.model_files(folder)} | {*pooling_files(exported)}
        return HandedOver("tei", sorted(files), note="The files were checked, but no server was started.")

    def example(self, exported: ExportedModel) -> str:
        """Returns the commands that start the server and request a vector from it."""
        return f"""\
Vectors from a server, with Text Embeddings Inference (run in the folder of this file):

```sh
docker run -p 8080:80 -v "$PWD:/model" {IMAGE} --model-id /model
curl 127.0.0.1:8080/embed -H 'Content-Type: application/json' -d '{{"inputs": "a sentence"}}'
```"""


class ToVllm(ExportKind):
    """Checks that vLLM can serve the folder."""

    def refuse(self, config: Config, model: Path) -> None:
        """Raises an error for encoders, and for decoders that vLLM does not support."""
        if config.objective.kind != "causal":
            raise ConfigError(
                f"export.kinds: vLLM generates text with decoders, but {model_type(model)} is trained as an encoder",
                "remove vllm from export.kinds; for vectors, use tei or sentence_transformers",
            )
        architectures = [str(name) for name in locate.read_json(model / locate.CONFIG).get("architectures") or []]
        if not {*architectures} & {*SERVED_BY_VLLM}:
            raise ConfigError(
                f"export.kinds: vLLM is not known to serve {', '.join(architectures) or model_type(model)}",
                "remove vllm from export.kinds; vLLM's documentation lists the models that it serves",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Checks the files that vLLM reads."""
        folder = exported.folder
        files = [str(file.relative_to(folder)) for file in locate.model_files(folder)]
        if locate.TOKENIZER_CONFIG not in files:
            raise ModelError(
                f"{folder} has no {locate.TOKENIZER_CONFIG}, which vLLM needs", "remove vllm from export.kinds"
            )
        return HandedOver("vllm", files, note="The files were checked, but no server was started.")

    def example(self, exported: ExportedModel) -> str:
        """Returns the commands that start the server and request text from it."""
        return """\
Text from a server, with vLLM (run in the folder of this file):

```sh
vllm serve . --served-model-name adapted
curl 127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "adapted", "prompt": "The", "max_tokens": 20}'
```"""
