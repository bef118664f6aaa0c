"""Compares a module that has a generator and a discriminator with `transformers` models, and tests its files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModel,
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DebertaV2Model,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
)

from adapt.model.architecture import is_detector
from adapt.model.detector import DebertaV2ForPreTraining, Detector, load_detector, save_detector
from adapt.model.locate import GENERATOR, Pretrained
from adapt.model.packing.packed import Packed
from adapt.support.errors import ModelError
from tests.samples import VOCABULARY

SIZES: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "embedding_size": 8}
LENGTHS = 5, 4


def written(folder: Path, tiny_bert: Path, kind: Any = ElectraForPreTraining, **changes: Any) -> Path:
    """Writes a random ELECTRA of three layers without dropout, and a tokenizer."""
    config = ElectraConfig(
        vocab_size=len(VOCABULARY),
        **{**SIZES, "num_hidden_layers": 3, "max_position_embeddings": 32, **changes},
        initializer_range=0.3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


def sequence() -> tuple[Packed, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns two packed documents with three masked tokens, their positions and targets, and random numbers."""
    tokens = torch.arange(10, 10 + sum(LENGTHS))
    positions = torch.tensor([1, 3, 6])
    targets = tokens[positions]
    tokens[positions] = VOCABULARY.index("[MASK]")
    starts = torch.zeros(1, len(tokens), dtype=torch.bool)
    starts[0, [0, LENGTHS[0]]] = True
    packed = Packed.of(tokens[None], torch.ones_like(starts), starts)
    return packed, positions, targets, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)


def test_the_generator_draws_and_the_discriminator_scores_as_transformers_models_do(
    tmp_path: Path, tiny_bert: Path
) -> None:
    folder = written(tmp_path / "model", tiny_bert)
    model = load_detector(Pretrained(folder, folder), 2, "separate")
    packed, positions, targets, draws = sequence()
    loss, logits, replaced = model(packed, positions, targets, draws)

    generator: Any = ElectraForMaskedLM(model.generator.config).eval()
    generator.load_state_dict(model.generator.state_dict())
    assert generator.config.num_hidden_layers == 2
    filled, expected = packed.input_ids[0].clone(), torch.zeros(())
    parts = torch.split(packed.input_ids[0], list(LENGTHS))
    scores = torch.cat([generator(part[None]).logits[0] for part in parts])
    for position, target, draw in zip(positions, targets, draws, strict=True):
        expected = expected + cross_entropy(scores[position][None], target[None])
        ends = scores[position].double().softmax(0).cumsum(0)
        filled[position] = int((ends <= draw).sum())
    discriminator: Any = ElectraForPreTraining.from_pretrained(folder).eval()
    wanted = torch.cat([discriminator(part[None]).logits[0] for part in torch.split(filled, list(LENGTHS))])
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-5)
    assert replaced.nonzero().flatten().tolist() == positions[filled[positions] != targets].tolist()


def test_a_guessed_token_counts_as_original(tmp_path: Path, tiny_bert: Path) -> None:
    folder = written(tmp_path / "model", tiny_bert)
    model = load_detector(Pretrained(folder, folder), None, "separate")
    assert model.generator.config.num_hidden_layers == 1  # generators have a third of the layers
    packed, positions, targets, draws = sequence()
    model.generator.generator_lm_head.bias.data[targets[0]] += 100
    _, _, replaced = model(packed, positions, targets[:1].expand(3), draws)
    assert not replaced.any()


def tables(model: Detector) -> tuple[Any, Any]:
    return model.generator.base_model.embeddings.word_embeddings, model.base_model.embeddings.word_embeddings


@pytest.mark.parametrize("embeddings", ["shared", "disentangled", "separate"])
def test_embeddings_get_the_gradients_that_their_sharing_lets_through(
    tmp_path: Path, tiny_bert: Path, embeddings: str
) -> None:
    folder = written(tmp_path / "model", tiny_bert)
    model = load_detector(Pretrained(folder, folder), 1, embeddings)
    own = ElectraForPreTraining.from_pretrained(folder).electra.embeddings.word_embeddings.weight
    ids = torch.arange(20, 29)
    generator, discriminator = tables(model)
    torch.testing.assert_close(discriminator(ids), own[ids])
    _, logits, _ = model(*sequence())
    logits.sum().backward()
    assert (generator.weight.grad is not None) == (embeddings == "shared")
    assert discriminator.weight.grad.abs().sum() > 0
    assert (generator.weight is discriminator.weight) == (embeddings == "shared")
    if embeddings == "disentangled":
        assert not discriminator.weight.any()  # E_delta = 0 at the start
        generator.weight.data += 1  # E_D = E_G + E_delta follows the generator
        torch.testing.assert_close(discriminator(ids), own[ids] + 1)


@pytest.mark.parametrize("embeddings", ["shared", "disentangled"])
def test_a_saved_pair_goes_on_as_it_was(tmp_path: Path, tiny_bert: Path, embeddings: str) -> None:
    folder = written(tmp_path / "model", tiny_bert)
    start = Pretrained(folder, folder)
    model = load_detector(start, 1, embeddings)
    for parameter in model.parameters():
        parameter.data += 0.01 * torch.randn_like(parameter)
    save_detector(start, model.state_dict(), AutoTokenizer.from_pretrained(folder), tmp_path / "saved", 1)
    again = start.at(tmp_path / "saved")
    assert again.generator == tmp_path / "saved" / GENERATOR
    packed, positions, targets, draws = sequence()
    wanted = model(packed, positions, targets, draws)
    found = load_detector(again, None, embeddings)(packed, positions, targets, draws)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    plain: Any = ElectraForPreTraining.from_pretrained(tmp_path / "saved").eval()
    head = plain(torch.arange(10, 15)[None]).logits
    torch.testing.assert_close(head, model.discriminator(torch.arange(10, 15)[None]).logits, rtol=1e-4, atol=1e-5)


def test_a_masked_language_model_gets_a_new_head_and_gives_its_own_to_the_generator(
    tmp_path: Path, tiny_bert: Path
) -> None:
    folder = written(tmp_path / "model", tiny_bert, ElectraForMaskedLM)
    first, second = (load_detector(Pretrained(folder, folder), 1, "shared") for _ in range(2))
    stored: Any = ElectraForMaskedLM.from_pretrained(folder)
    assert torch.equal(first.generator.generator_predictions.dense.weight, stored.generator_predictions.dense.weight)
    heads = [each.discriminator.discriminator_predictions.dense.weight for each in (first, second)]
    assert torch.equal(*heads)


def test_a_generator_with_other_tables_is_refused_unless_they_are_separate(tmp_path: Path, tiny_bert: Path) -> None:
    folder = written(tmp_path / "model", tiny_bert)
    for name, changes, refuses in (
        ("other", {}, ["shared"]),
        ("wide", {"embedding_size": 12}, ["shared", "disentangled"]),
    ):
        generator = written(tmp_path / name, tiny_bert, ElectraForMaskedLM, **changes)
        if not changes:
            model: Any = ElectraForMaskedLM.from_pretrained(generator)
            model.electra.embeddings.word_embeddings.weight.data += 1
            model.save_pretrained(generator)
        start = Pretrained(folder, folder, generator=generator)
        for embeddings in refuses:
            with pytest.raises(ModelError, match="word_embeddings"):
                load_detector(start, None, embeddings)
        load_detector(start, None, "separate")


def written_deberta(folder: Path, tiny_bert: Path) -> Path:
    """Writes a random DeBERTa-v3 of three layers without dropout, and a tokenizer."""
    config = DebertaV2Config(
        vocab_size=len(VOCABULARY),
        **{**SIZES, "num_hidden_layers": 3, "max_position_embeddings": 32},
        initializer_range=0.3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        DebertaV2ForPreTraining(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


def test_deberta_scores_as_in_padded_rows_and_its_files_go_on(tmp_path: Path, tiny_bert: Path) -> None:
    folder = written_deberta(tmp_path / "model", tiny_bert)
    start = Pretrained(folder, folder)
    model = load_detector(start, 1, "disentangled")
    packed, positions, targets, draws = sequence()
    loss, logits, replaced = model(packed, positions, targets, draws)
    generator: Any = DebertaV2ForMaskedLM(model.generator.config).eval()
    generator.load_state_dict(model.generator.state_dict())
    parts = torch.split(packed.input_ids[0], list(LENGTHS))
    scores = torch.cat([generator(part[None]).logits[0] for part in parts])
    torch.testing.assert_close(loss, cross_entropy(scores[positions], targets, reduction="sum"), rtol=1e-4, atol=1e-5)
    filled = packed.input_ids[0].clone()
    for position, draw in zip(positions, draws, strict=True):
        filled[position] = int((scores[position].double().softmax(0).cumsum(0) <= draw).sum())
    stored: Any = DebertaV2ForPreTraining.from_pretrained(folder).eval()
    rows = torch.split(filled, list(LENGTHS))
    torch.testing.assert_close(logits, torch.cat([stored(row[None])[0] for row in rows]), rtol=1e-4, atol=1e-5)
    assert replaced.nonzero().flatten().tolist() == positions[filled[positions] != targets].tolist()

    save_detector(start, model.state_dict(), AutoTokenizer.from_pretrained(folder), tmp_path / "saved", 1)
    again = load_detector(start.at(tmp_path / "saved"), None, "disentangled")
    torch.testing.assert_close(again(packed, positions, targets, draws)[1], logits, rtol=1e-4, atol=1e-5)
    names = load_file(tmp_path / "saved" / "model.safetensors").keys()
    assert {name.split(".")[0] for name in names} == {"deberta", "mask_predictions"}
    assert isinstance(AutoModel.from_pretrained(tmp_path / "saved"), DebertaV2Model)


def test_only_discriminators_are_fine_tuned_without_a_language_model_head(tmp_path: Path, tiny_bert: Path) -> None:
    assert is_detector(written(tmp_path / "electra", tiny_bert))
    assert is_detector(written_deberta(tmp_path / "deberta", tiny_bert))
    assert not is_detector(written(tmp_path / "generator", tiny_bert, ElectraForMaskedLM))
    assert not is_detector(tiny_bert)
