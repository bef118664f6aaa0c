"""Models without a head: loaded for their states, or refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertModel, ConvBertConfig, ConvBertModel

from adapt.errors import ModelError
from adapt.model.base import load_base
from adapt.model.outputs.states import last_hidden_state
from adapt.model.packing.packed import Packed


def test_a_model_that_never_had_a_head_for_words_gives_its_states(tiny_bert: Path, tmp_path: Path) -> None:
    original = BertModel.from_pretrained(tiny_bert, add_pooling_layer=False).eval()
    original.save_pretrained(tmp_path)
    texts = [torch.arange(20, 27), torch.arange(40, 43)]
    with torch.inference_mode():
        expected = torch.cat([original(input_ids=text[None]).last_hidden_state[0] for text in texts])
        for folder in (tmp_path, tiny_bert):
            found = last_hidden_state(load_base(folder), Packed.joined(*map(Packed.single, texts)))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_model_that_is_not_all_there_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "deep")
    config = json.loads((tmp_path / "deep" / "config.json").read_text())
    (tmp_path / "deep" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="lacks weights"):
        load_base(tmp_path / "deep")


def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    with pytest.raises(ModelError, match="has an encoder and a decoder"):
        load_base(tmp_path)


def test_a_model_whose_attention_is_its_own_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    ConvBertModel(ConvBertConfig(vocab_size=50, embedding_size=16, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="ConvBertModel cannot keep documents apart"):
        load_base(tmp_path)
