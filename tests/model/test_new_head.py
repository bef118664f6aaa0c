"""Tests the new head for masked language modelling on an encoder without a head."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    LlamaConfig,
    LlamaModel,
    ModernBertConfig,
    ModernBertModel,
    RobertaConfig,
    RobertaModel,
)

from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.new_head import write_with_head
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError

SMALL = {"vocab_size": 154, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
ENCODERS = {
    "bert": lambda: BertModel(BertConfig(**SMALL, intermediate_size=24, max_position_embeddings=64)),
    "roberta": lambda: RobertaModel(RobertaConfig(**SMALL, intermediate_size=24, max_position_embeddings=64)),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(vocab_size=154, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=64)
    ),
    "modernbert": lambda: ModernBertModel(
        ModernBertConfig(**SMALL, intermediate_size=24, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3)
    ),
}


def headless(kind: str, folder: Path, tiny_bert: Path) -> Pretrained:
    torch.manual_seed(1)
    ENCODERS[kind]().save_pretrained(folder)
    return Pretrained(folder, tiny_bert)


@pytest.mark.parametrize("kind", ENCODERS)
def test_layers_stay_and_the_head_shares_the_embeddings(kind: str, tiny_bert: Path, tmp_path: Path) -> None:
    start = headless(kind, tmp_path / "bare", tiny_bert)
    with pytest.raises(ModelError, match="lacks weights of its language model"):
        load_model(start.model)
    count = write_with_head(start, tmp_path / "new")
    model = load_model(tmp_path / "new")
    bare = ENCODERS[kind]().from_pretrained(start.model).state_dict()
    found = model.base_model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in bare.items() if "pooler" not in name)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    total = sum(parameter.numel() for parameter in model.parameters())
    assert count == total - sum(parameter.numel() for parameter in model.base_model.parameters())
    assert len(load_tokenizer(tmp_path / "new")) <= model.config.vocab_size
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "new").config.architectures[0].endswith("ForMaskedLM")


def test_the_same_head_is_drawn_each_time(tiny_bert: Path, tmp_path: Path) -> None:
    start = headless("bert", tmp_path / "bare", tiny_bert)
    for name in ("one", "two"):
        torch.manual_seed(len(name))
        write_with_head(start, tmp_path / name)
        torch.rand(7)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second
    weight = load_model(tmp_path / "one").cls.predictions.transform.dense.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_what_has_a_head_is_a_decoder_or_lacks_layers_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.head is new, but .* has a masked-language-model head"):
        write_with_head(Pretrained(tiny_bert, tiny_bert), tmp_path / "new")
    LlamaModel(LlamaConfig(**SMALL, intermediate_size=24)).save_pretrained(tmp_path / "llama")
    with pytest.raises(ModelError, match="masked language modelling needs an encoder"):
        write_with_head(Pretrained(tmp_path / "llama", tiny_bert), tmp_path / "new")
    bert = ENCODERS["bert"]()
    state = {name: value for name, value in bert.state_dict().items() if "layer.1." not in name}
    bert.save_pretrained(tmp_path / "part", state_dict=state)
    with pytest.raises(ModelError, match=r"encoder\.layer\.1"):
        write_with_head(Pretrained(tmp_path / "part", tiny_bert), tmp_path / "new")
