"""Exports a model as an ONNX graph, and compares the outputs of the graph with the outputs of the model.

The export uses `transformers.exporters`. The graph runs in ONNX Runtime for the comparison.
"""

import inspect
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel
from transformers.exporters.configs import OnnxConfig
from transformers.exporters.exporter_onnx import OnnxExporter

from adapt.handover.export_kind import ExportedModel
from adapt.model.architecture import is_detector, max_sequence_length
from adapt.runner.files import folder_aside
from adapt.support.errors import ModelError

TOLERANCE = 1e-3
"""Maximum accepted difference of an output, divided by the larger of 1 and the model's largest absolute output."""
SHAPES = ((1, 3), (2, 9), (3, 30))
"""Sizes of the batches that are compared: number of texts and tokens per text."""
SINGLE_BYTES = 1.8e9
"""Maximum total size of weights that are stored in the graph's file [bytes]. Larger weights are stored in a separate
file, because a protobuf file is limited to 2 GiB."""


def write_graph(exported: ExportedModel, target: Path) -> float:
    """Exports a model in float32, and returns the largest absolute difference of the graph's outputs from the model's.

    Args:
        exported: the model.
        target: path of the graph's file. An existing folder of the file is replaced only if the comparison succeeds.

    Raises:
        ModelError: transformers cannot export the architecture, or outputs differ by more than TOLERANCE.
    """
    model = loaded(exported)
    names = input_names(exported.folder, model)
    longest = max_sequence_length(exported.folder) or 512
    batches = [batch(model, names, texts, min(tokens, longest)) for texts, tokens in SHAPES]
    program = graph_of(model, batches[1])
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    with folder_aside(target.parent) as aside:
        graph = aside / target.name
        onnx_ir.save(program, graph, external_data=f"{graph.name}.data" if size > SINGLE_BYTES else None)
        return output_difference(model, graph, batches)


def loaded(exported: ExportedModel) -> PreTrainedModel:
    """Loads the model in float32. A model for sentence vectors is loaded without its head."""
    bare = exported.vectors or is_detector(exported.folder) or exported.config.objective.kind == "mntp"
    headed = AutoModelForCausalLM if exported.is_decoder else AutoModelForMaskedLM
    model = (AutoModel if bare else headed).from_pretrained(exported.folder, dtype=torch.float32)
    model.config.use_cache = False  # with the cache, the graph would also return all keys and values
    loaded: PreTrainedModel = model.eval()
    return loaded


def input_names(folder: Path, model: PreTrainedModel) -> list[str]:
    """Returns the names of the tokenizer's outputs that are inputs of the model."""
    taken = inspect.signature(model.forward).parameters
    return [name for name in AutoTokenizer.from_pretrained(folder).model_input_names if name in taken]


def batch(model: PreTrainedModel, names: list[str], texts: int, tokens: int) -> dict[str, torch.Tensor]:
    """Makes a batch of random tokens. The second half of the last text is padding if there are several texts.

    Returns:
        Tensors of shape [texts, tokens], keyed by the names of the inputs.
    """
    draw = torch.Generator().manual_seed(texts)
    ids = torch.randint(5, int(model.config.vocab_size), (texts, tokens), generator=draw)
    mask = torch.ones_like(ids)
    if texts > 1:
        mask[-1, tokens - tokens // 2 :] = 0
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: made[name] for name in names if name in made}


def graph_of(model: PreTrainedModel, sample: dict[str, torch.Tensor]) -> Any:
    """Exports a model as a graph of onnx_ir that accepts any batch size and length."""
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    settings = OnnxConfig(dynamic_shapes=dict.fromkeys(sample, sizes), prefer_deferred_runtime_asserts_over_guards=True)
    try:
        with silent_exporter():
            return OnnxExporter().export_program(model, sample, settings)[0]
    except Exception as error:  # torch.export, onnxscript and the model's code raise many kinds of errors
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ModelError(
            f"{model.config.model_type} cannot be exported as ONNX: {reason[0]}", "remove onnx from export.kinds"
        ) from error


@contextmanager
def silent_exporter() -> Iterator[None]:
    """Hides the messages and warnings of torch's exporter while the block runs, because users cannot act on them."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def output_difference(model: PreTrainedModel, graph: Path, batches: list[dict[str, torch.Tensor]]) -> float:
    """Returns the largest absolute difference between the outputs of a graph and of the model. Ignores padding."""
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    named = {each.name for each in session.get_inputs()}
    worst = 0.0
    for inputs in batches:
        with torch.no_grad():
            expected = model(**inputs)[0].numpy()
        fed = {name: tensor.numpy() for name, tensor in inputs.items() if name in named}
        (found, *_) = session.run(None, fed)
        real = inputs["attention_mask"].numpy().astype(bool)
        difference = float(np.abs(found - expected)[real].max())
        if not difference <= TOLERANCE * max(1.0, float(np.abs(expected[real]).max())):
            raise ModelError(
                f"the outputs of {graph.name} differ from those of the model by {difference:.2g}",
                "remove onnx from export.kinds, and report the model's architecture as a bug of dontstop",
            )
        worst = max(worst, difference)
    return worst
