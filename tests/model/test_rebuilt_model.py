"""Tests the new head for masked language modelling on an encoder without a head, and new weights of top layers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    LlamaConfig,
    LlamaModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.rebuilt_model import missing_head, write_with_head, write_with_new_top
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ConfigError, ModelError
from tests.model.checkpoints import copy_with_old_names

SMALL = {"vocab_size": 154, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
SIZES = {"intermediate_size": 24, "max_position_embeddings": 64}
ENCODERS = {
    "bert": lambda: BertModel(BertConfig(**SMALL, **SIZES)),
    "roberta": lambda: RobertaModel(RobertaConfig(**SMALL, **SIZES)),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(vocab_size=154, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=64)
    ),
    "modernbert": lambda: ModernBertModel(
        ModernBertConfig(**SMALL, intermediate_size=24, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3)
    ),
    "electra": lambda: ElectraModel(ElectraConfig(**SMALL, **SIZES, embedding_size=8)),
    "deberta-v2": lambda: DebertaV2Model(
        DebertaV2Config(**SMALL, **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], share_att_key=True)
    ),
    "mpnet": lambda: MPNetModel(MPNetConfig(**SMALL, **SIZES)),
}
ALBERT = {"albert": lambda: AlbertModel(AlbertConfig(**SMALL, **SIZES, embedding_size=8))}
"""An encoder whose layers share their weights, so that its top layers cannot get new ones."""


def headless(kind: str, folder: Path, tiny_bert: Path) -> Pretrained:
    torch.manual_seed(1)
    (ENCODERS | ALBERT)[kind]().save_pretrained(folder)
    return Pretrained(folder, tiny_bert)


@pytest.mark.parametrize("kind", ENCODERS | ALBERT)
def test_layers_stay_and_the_head_shares_the_embeddings(kind: str, tiny_bert: Path, tmp_path: Path) -> None:
    start = headless(kind, tmp_path / "bare", tiny_bert)
    with pytest.raises(ModelError, match="lacks weights of its language model"):
        load_model(start.model)
    assert missing_head(start.model)
    count = write_with_head(start, tmp_path / "new")
    assert not missing_head(tmp_path / "new")
    model = load_model(tmp_path / "new")
    bare = (ENCODERS | ALBERT)[kind]().from_pretrained(start.model).state_dict()
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


# --- top layers


@pytest.mark.parametrize("kind", ENCODERS)
def test_only_the_top_layers_and_a_pooler_get_new_weights(kind: str, tiny_bert: Path, tmp_path: Path) -> None:
    start = headless(kind, tmp_path / "old", tiny_bert)
    (tmp_path / "new").mkdir()
    count = write_with_new_top(start, 1, 7, tmp_path / "new")
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("old", "new"))
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    drawn = {name for name in old if "layer.1." in name or "layers.1." in name or "pooler." in name}
    constant = {name for name in drawn if old[name].unique().numel() == 1}  # biases and norms begin at 0 and 1
    assert changed == drawn - constant
    assert count == sum(old[name].numel() for name in drawn)
    matrices = [new[name] for name in changed if new[name].ndim == 2]
    assert all(abs(matrix.mean()) < 0.02 and 0.003 < matrix.std() < 0.05 for matrix in matrices)
    ENCODERS[kind]().from_pretrained(tmp_path / "new")


def test_old_names_of_layer_norms_are_known_and_stay(tiny_bert: Path, tmp_path: Path) -> None:
    old = copy_with_old_names(tiny_bert, tmp_path / "old")
    for name, folder in {"current": tiny_bert, "new": old}.items():
        (tmp_path / name).mkdir()
        write_with_new_top(Pretrained(folder, tiny_bert), 1, 7, tmp_path / name)
    current, new = (load_file(tmp_path / name / "model.safetensors") for name in ("current", "new"))
    assert new.keys() == load_file(old / "model.safetensors").keys() != current.keys()
    renamed = {name.replace("gamma", "weight").replace("beta", "bias"): value for name, value in new.items()}
    assert all(torch.equal(renamed[name], value) for name, value in current.items())


def test_the_seed_decides_the_new_weights_and_a_trained_bias_is_reset(tiny_bert: Path, tmp_path: Path) -> None:
    model = load_model(tiny_bert)
    bias = model.base_model.encoder.layer[1].output.dense.bias
    torch.nn.init.constant_(bias, 0.5)
    model.save_pretrained(tmp_path / "biased")
    start = Pretrained(tmp_path / "biased", tiny_bert)
    found = []
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        torch.manual_seed(number)
        write_with_new_top(start, 2, seed, folder)
        found.append(load_file(folder / "model.safetensors"))
    name = "bert.encoder.layer.1.output.dense"
    assert all(torch.equal(found[0][each], value) for each, value in found[1].items())
    assert not torch.equal(found[0][f"{name}.weight"], found[2][f"{name}.weight"])
    assert found[0][f"{name}.bias"].abs().max() == 0
    head = "cls.predictions.transform.dense.weight"
    assert torch.equal(found[0][head], model.state_dict()[head])


def test_too_many_top_layers_and_missing_ones_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.reinitialize_top is 3, but the model has 2 layers"):
        write_with_new_top(Pretrained(tiny_bert, tiny_bert), 3, 0, tmp_path)
    bert = ENCODERS["bert"]()
    state = {name: value for name, value in bert.state_dict().items() if "layer.1." not in name}
    bert.save_pretrained(tmp_path / "part", state_dict=state)
    (tmp_path / "new").mkdir()
    with pytest.raises(ModelError, match=r"lacks weights of its top layers.*encoder\.layer\.1"):
        write_with_new_top(Pretrained(tmp_path / "part", tiny_bert), 1, 0, tmp_path / "new")
