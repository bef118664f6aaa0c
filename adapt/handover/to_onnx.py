"""Exports a model as a graph that ONNX Runtime runs (`onnx` in `export.kinds`).

transformers exports the graph (`transformers.exporters`). Its inputs are input_ids, attention_mask and, for models that
have them, token_type_ids; batch and length may vary. Its output is `last_hidden_state` for models for sentence vectors,
and otherwise `logits`. The export succeeds only if the outputs of the graph in ONNX Runtime match the model's outputs.
"""

from pathlib import Path

from adapt.config import Config
from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver
from adapt.support.errors import ConfigError

FOLDER, GRAPH = "onnx", "model.onnx"


class ToOnnx(ExportKind):
    """Writes onnx/model.onnx for ONNX Runtime."""

    packages = ("onnx", "onnxruntime", "onnxscript")
    extra = "onnx"

    def refuse(self, config: Config, model: Path) -> None:
        """Raises an error for models whose code is in their folder, because loading them needs trust_remote_code."""
        if config.model.trust_remote_code:
            raise ConfigError(
                "export.kinds: onnx can only export models whose code is in transformers, but model.trust_remote_code"
                " is set",
                "remove onnx from export.kinds",
            )

    def write(self, exported: ExportedModel) -> HandedOver:
        """Exports the graph in float32, and compares its outputs with the model's."""
        from adapt.handover.onnx_graph import write_graph

        target = exported.folder / FOLDER
        difference = write_graph(exported, target / GRAPH)
        files = sorted(str(file.relative_to(exported.folder)) for file in target.iterdir())
        return HandedOver("onnx", files, difference, "Weights are in float32.")

    def example(self, exported: ExportedModel) -> str:
        """Returns code that runs the graph."""
        output = "last_hidden_state" if exported.vectors else "the first output"
        return f"""\
ONNX Runtime ({output} has the shape texts x tokens x size):

```python
import onnxruntime
from transformers import AutoTokenizer

inputs = AutoTokenizer.from_pretrained(".")(["a sentence"], return_tensors="np")
session = onnxruntime.InferenceSession("{FOLDER}/{GRAPH}")
outputs = session.run(None, {{each.name: inputs[each.name] for each in session.get_inputs()}})
```"""
