"""Tests decoders as encoders: tokens attend to both sides, and the position before a masked token predicts it."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from adapt.config import Config, ModelConfig, ObjectiveConfig, StorageConfig
from adapt.model.architecture import check_architecture
from adapt.model.load import check_loads, load_base, load_model
from adapt.model.locate import Pretrained
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.rebuilt_model import MASK, write_turned
from adapt.objective.masking import make
from adapt.objective.table import measured_objective
from adapt.stage.context import Context
from adapt.support.errors import ModelError
from tests.model.families import VOCABULARY, plain
from tests.objective.test_objective import DOCUMENTS, batch
from tests.train.toy import Tokenizer as Toy

DECODERS = ["gpt2", "llama", "qwen3"]
PIECES = [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[3][:1], DOCUMENTS[3][1:]]
LETTERS = "abcdefghijklmnopqrstuvwxyz_ "


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of letters with an end-of-text token and no mask token."""
    backend = Tokenizer(models.BPE({"</s>": 0} | {letter: number + 1 for number, letter in enumerate(LETTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def decoder(folder: Path, family: str = "llama") -> Pretrained:
    plain(family).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return Pretrained(folder, folder, False)


@pytest.mark.parametrize("family", DECODERS)
def test_losses_equal_those_of_a_plain_bidirectional_model(family: str) -> None:
    """The token at position i is masked and predicted from the output at position i - 1."""
    reference = plain(family)
    reference.config.is_causal = False
    model = copy.deepcopy(reference)
    keep_documents_apart(model)
    objective = make(ObjectiveConfig(kind="mntp", mask_fraction=0.5), Toy(), 3)  # type: ignore[arg-type]
    corrupted = objective.corrupt(batch())
    shown = corrupted.input_ids[corrupted.real].split([len(piece) for piece in PIECES])
    asked = corrupted.positions[corrupted.real].split([len(piece) for piece in PIECES])
    expected = []
    for piece, seen, at in zip(PIECES, shown, asked, strict=True):
        logits = reference(input_ids=seen[None]).logits[0]
        places = at.nonzero().flatten()
        if len(places):
            expected.append(cross_entropy(logits[places], torch.tensor(piece)[places + 1], reduction="none"))
    torch.testing.assert_close(objective.losses(model, corrupted), torch.cat(expected).detach(), rtol=1e-4, atol=1e-5)


def test_the_masked_token_is_the_one_after_each_prediction_and_never_a_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("adapt.objective.masking.MASKED", 1.0)
    objective = make(ObjectiveConfig(kind="mntp", mask_fraction=0.9), Toy(), 3)  # type: ignore[arg-type]
    rows = batch()
    corrupted = objective.corrupt(rows)
    masked = (corrupted.input_ids == Toy.mask_token_id) & rows.real
    assert torch.equal(corrupted.positions[:, :-1], masked[:, 1:])
    assert not corrupted.positions[:, -1].any()
    assert not (masked & rows.starts).any()
    assert torch.equal(corrupted.targets, rows.tokens[masked])
    assert corrupted.targets.numel() > 4


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_transformers_loads_the_turned_decoder_with_bidirectional_attention(tmp_path: Path, family: str) -> None:
    start = decoder(tmp_path / "start", family)
    (tmp_path / "turned").mkdir()
    assert write_turned(start, tmp_path / "turned") == (MASK, True)
    plainly = AutoModelForCausalLM.from_pretrained(tmp_path / "turned").eval()
    ids = torch.tensor([[5, 9, 7, 11]])
    other = torch.tensor([[5, 9, 7, 12]])
    with torch.no_grad():
        both = [plainly(input_ids=each).logits[0, 0] for each in (ids, other)]
        ours = load_base(tmp_path / "turned")(input_ids=ids).last_hidden_state
        theirs = plainly.base_model(input_ids=ids).last_hidden_state
    assert not torch.allclose(*both, atol=1e-3)  # the output at the first token depends on the last token
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match=r"set objective\.kind to mntp"):
        load_model(tmp_path / "turned", causal=True)
    assert load_model(tmp_path / "turned").config.is_causal is False
    check_loads(tmp_path / "turned", None)


def test_a_mask_token_is_added_without_changing_how_texts_are_split(tmp_path: Path) -> None:
    start = decoder(tmp_path / "start")
    (tmp_path / "turned").mkdir()
    write_turned(start, tmp_path / "turned")
    before, after = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("start", "turned"))
    assert before("a snake_case mask")["input_ids"] == after("a snake_case mask")["input_ids"]
    number = after.mask_token_id
    assert number == len(before)
    old, new = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("start", "turned"))
    assert new.config.vocab_size == VOCABULARY  # the new token takes an unused row
    for table in ("get_input_embeddings", "get_output_embeddings"):
        was, now = getattr(old, table)().weight, getattr(new, table)().weight
        torch.testing.assert_close(now[number], was[: len(before)].mean(0))
        assert torch.equal(now[:number], was[:number])
    (tmp_path / "own").mkdir()
    after.save_pretrained(tmp_path / "start")  # now the tokenizer has its own mask token
    assert write_turned(start, tmp_path / "own") == (MASK, False)


def test_a_full_table_grows_by_the_mask_token(tmp_path: Path) -> None:
    start = decoder(tmp_path / "start")
    model = plain("llama")
    model.resize_token_embeddings(len(tokenizer()))
    model.save_pretrained(start.model)
    (tmp_path / "turned").mkdir()
    write_turned(start, tmp_path / "turned")
    turned = AutoModelForCausalLM.from_pretrained(tmp_path / "turned")
    assert turned.config.vocab_size == len(tokenizer()) + 1
    torch.testing.assert_close(turned.lm_head.weight[-1], model.lm_head.weight.mean(0))


def test_models_and_objectives_that_do_not_fit_are_refused(tmp_path: Path, tiny_bert: Path) -> None:
    start = decoder(tmp_path / "start")
    (tmp_path / "turned").mkdir()
    write_turned(start, tmp_path / "turned")
    for folder, causal, shifted, turned, said in [
        (tmp_path / "turned", True, False, False, "set objective.kind to mntp"),
        (tmp_path / "turned", False, False, False, "set objective.kind to mntp"),
        (start.model, False, False, True, "set objective.kind to mntp"),
        (start.model, False, True, False, "set model.attention to bidirectional"),
        (tiny_bert, False, True, False, "set model.attention to bidirectional"),
        (tiny_bert, False, True, True, "leave model.attention out"),
    ]:
        with pytest.raises(ModelError) as caught:
            check_architecture(folder, causal, shifted, turned)
        assert said in str(caught.value)
    check_architecture(tmp_path / "turned", causal=False, shifted=True)
    check_architecture(start.model, causal=False, shifted=True, turned=True)
    with pytest.raises(ModelError, match="with bidirectional attention"):
        write_turned(Pretrained(tmp_path / "turned", tmp_path / "turned", False), tmp_path)


def test_an_attention_that_stays_causal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = decoder(tmp_path / "start")
    monkeypatch.setattr(
        "transformers.models.llama.modeling_llama.LlamaModel.forward",
        copy.copy(type(plain("llama").model).forward.__wrapped__),
    )
    with pytest.raises(ModelError, match=r"LlamaForCausalLM in .* cannot be made bidirectional"):
        write_turned(start, tmp_path)


def test_the_share_of_masked_tokens_in_measurements_is_fixed() -> None:
    config = Config(objective=ObjectiveConfig("mntp", mask_fraction=0.3))
    assert measured_objective(config) == ObjectiveConfig("mntp", mask_fraction=0.15)


def test_a_decoder_of_a_stage_is_turned_too_but_never_twice(tmp_path: Path) -> None:
    start = decoder(tmp_path / "start")
    own = Config(
        model=ModelConfig(str(start.model)),
        objective=ObjectiveConfig("causal"),
        storage=StorageConfig(root=str(tmp_path / "runs")),
    )
    turned = replace(own, model=replace(own.model, attention="bidirectional"), objective=ObjectiveConfig("mntp"))
    trained = Context.of(own).start
    assert trained.turned is None
    first = Context.of(turned, start=trained).start
    assert first.turned
    assert first.vocabulary == first.training == first.turned
    assert Context.of(turned, start=first).start == first
    with pytest.raises(ModelError, match=r"set objective\.kind to mntp"):
        Context.of(own, start=first)
