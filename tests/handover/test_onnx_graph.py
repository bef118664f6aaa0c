"""Tests ONNX graphs: ONNX Runtime gives the outputs of the model at new lengths too. Wrong graphs are refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from adapt.handover.to_onnx import ToOnnx
from adapt.model.sentence_vectors import SentenceVectors
from adapt.support.errors import ConfigError, ModelError
from tests.handover.models import bytewise, decoder, exported, exporting
from tests.samples import sentences

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from adapt.handover import onnx_graph  # noqa: E402  # needs the packages above

TEXTS = [*sentences(3, shortest=3, longest=40), "the model"]


@pytest.mark.parametrize("vectors", [None, SentenceVectors("mean")])
def test_the_graph_of_an_encoder(vectors: SentenceVectors | None, tiny_bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    written = ToOnnx().write(exported(folder, "mlm", vectors=vectors))
    assert written.files == ["onnx/model.onnx"]
    assert written.difference is not None
    assert written.difference < 1e-4
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    inputs = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    (found, *_) = session.run(None, {each.name: inputs[each.name].numpy() for each in session.get_inputs()})
    with torch.no_grad():
        expected = (AutoModel if vectors else AutoModelForMaskedLM).from_pretrained(folder).eval()(**inputs)[0].numpy()
    assert session.get_outputs()[0].name == ("last_hidden_state" if vectors else "logits")
    real = inputs["attention_mask"].numpy().astype(bool)
    np.testing.assert_allclose(found[real], expected[real], atol=1e-4)


def test_the_graph_of_a_decoder(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", "llama", bytewise())
    written = ToOnnx().write(exported(folder))
    session = onnxruntime.InferenceSession(str(folder / written.files[0]))
    ids = torch.arange(2, 40)[None]
    (found, *others) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": np.ones_like(ids)})
    assert not others
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_graph_with_other_outputs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = decoder(tmp_path / "model", "gpt2", bytewise())
    written = ToOnnx().write(exported(folder))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        model.transformer.wpe.weight[1] *= -1
    batches = [onnx_graph.batch(model, ["input_ids", "attention_mask"], 1, 4)]
    with pytest.raises(ModelError, match=r"differ from those of the model by"):
        onnx_graph.output_difference(model, folder / written.files[0], batches)


def test_a_graph_that_was_not_compared_replaces_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = decoder(tmp_path / "model", "gpt2", bytewise())

    def kill(model: object, graph: Path, batches: object) -> float:
        assert graph.is_file()
        raise KeyboardInterrupt

    compare = onnx_graph.output_difference
    monkeypatch.setattr(onnx_graph, "output_difference", kill)
    with pytest.raises(KeyboardInterrupt):
        ToOnnx().write(exported(folder))
    assert not (folder / "onnx").exists()
    monkeypatch.setattr(onnx_graph, "output_difference", compare)
    ToOnnx().write(exported(folder))
    assert [file.name for file in folder.rglob("*.onnx")] == ["model.onnx"]


def test_a_model_that_cannot_be_exported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = decoder(tmp_path / "model", "gpt2", bytewise())
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    monkeypatch.setattr(type(model), "forward", lambda self, **inputs: 1 / 0)
    with pytest.raises(ModelError, match=r"gpt2 cannot be exported as ONNX: .*\n.*remove onnx"):
        onnx_graph.graph_of(model, onnx_graph.batch(model, ["input_ids", "attention_mask"], 2, 9))


def test_code_of_a_model_is_refused(tiny_bert: Path) -> None:
    from dataclasses import replace

    config = exporting(["onnx"])
    with pytest.raises(ConfigError, match=r"model.trust_remote_code is set"):
        ToOnnx().refuse(replace(config, model=replace(config.model, trust_remote_code=True)), tiny_bert)
