"""Kind `vllm` of `export.kinds`: checks that vLLM can serve the folder of a decoder.

vLLM reads the folder of transformers as it is. Its wheel needs a GPU and several GB, so that neither dontstop nor its
tests install it: the check compares config.json with the decoders in vLLM's registry
(`vllm/model_executor/models/registry.py`), and requires the files that its loader opens.
"""

from pathlib import Path

from adapt.config import Config
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver, ModelKind
from adapt.model.locate import TOKENIZER_CONFIG, model_files
from adapt.support.errors import ConfigError, ModelError

SERVED = (
    *("BloomForCausalLM", "FalconForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GemmaForCausalLM"),
    *("GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM", "GptOssForCausalLM"),
    *("GraniteForCausalLM", "LlamaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "MistralForCausalLM"),
    *("MixtralForCausalLM", "Olmo2ForCausalLM", "OlmoForCausalLM", "OPTForCausalLM", "Phi3ForCausalLM"),
    *("PhiForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
    *("StableLmForCausalLM", "Starcoder2ForCausalLM"),
)
"""Classes of text decoders in transformers that vLLM also has. Its other decoders are not in transformers."""


class ToVllm(ExportKind):
    """Served by vLLM."""

    def refuse(self, config: Config, model: Path) -> None:
        """Refuses encoders, and decoders that vLLM does not have."""
        kind = ModelKind.of(model)
        if config.objective.kind != "causal":
            raise ConfigError(
                f"export.kinds: vLLM generates text with decoders, and {kind.model_type} is trained as an encoder",
                "remove vllm from export.kinds; for vectors, use tei or sentence_transformers",
            )
        if not {*kind.architectures} & {*SERVED}:
            raise ConfigError(
                f"export.kinds: vLLM is not known to serve {', '.join(kind.architectures) or kind.model_type}",
                "remove vllm from export.kinds; vLLM's documentation lists the models that it serves",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Checks the files that vLLM reads.

        Raises:
            ModelError: weights, config.json or the tokenizer are missing.
        """
        folder = exported.folder
        files = [str(file.relative_to(folder)) for file in model_files(folder)]
        if TOKENIZER_CONFIG not in files:
            raise ModelError(f"{folder} has no {TOKENIZER_CONFIG}, which vLLM needs", "remove vllm from export.kinds")
        return HandedOver("vllm", files, note="The files were checked, but no server was started.")

    def example(self, exported: ExportedModel) -> str:
        """Returns the commands that start the server and ask it for text."""
        return """\
Text from a server, with vLLM (run in the folder of this file):

```sh
vllm serve . --served-model-name adapted
curl 127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "adapted", "prompt": "The", "max_tokens": 20}'
```"""
