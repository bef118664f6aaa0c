"""Pseudo-perplexity against a loop over single passes of plain transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from adapt.config import ComparisonConfig, Config, EvaluationConfig
from adapt.corpus.shards.tokens import write_shard
from adapt.evaluate.mlm_loss import Heldout
from adapt.evaluate.pseudo import perplexities, pseudo_losses
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer

CPU = torch.device("cpu")
EVALUATION = EvaluationConfig(sequence_length=16, micro_batch=2)


def documents(count: int, longest: int) -> list[list[int]]:
    draw = np.random.default_rng(3)
    return [[2, *draw.integers(5, 150, draw.integers(1, longest)).tolist(), 3] for _ in range(count)]


def one_by_one(folder: Path, pieces: list[list[int]]) -> tuple[float, int]:
    """Each token but the special ones (0 to 4) masked in a pass of its own."""
    from transformers import BertForMaskedLM

    model, total, count = BertForMaskedLM.from_pretrained(folder).eval(), 0.0, 0
    with torch.inference_mode():
        for piece in pieces:
            for place, token in enumerate(piece):
                if token > 4:
                    ids = torch.tensor(piece)[None]
                    ids[0, place] = 4
                    total -= float(model(input_ids=ids).logits[0, place].log_softmax(-1)[token])
                    count += 1
    return total, count


@pytest.mark.parametrize("micro_batch", [1, 2, 50])
def test_equals_the_loop(tiny_bert: Path, micro_batch: int) -> None:
    texts = [*documents(4, 40), [2, 3], [2, 1, 3]]  # two without an ordinary token
    sample = Heldout(list(range(len(texts))), [np.array(text, np.uint16) for text in texts])
    evaluation = EvaluationConfig(sequence_length=16, micro_batch=micro_batch)
    losses, counts = pseudo_losses(load_model(tiny_bert), load_tokenizer(tiny_bert), sample, evaluation, CPU)
    for text, loss, count in zip(texts, losses, counts, strict=True):
        pieces = [text[start : start + 16] for start in range(0, len(text), 16)]
        expected, number = one_by_one(tiny_bert, pieces)
        assert count == number
        assert loss == pytest.approx(expected, abs=1e-4 * max(number, 1))


def test_of_corpora_on_the_cluster(tiny_bert: Path, tmp_path: Path, ray_cluster: None) -> None:
    texts = documents(5, 12)
    (tmp_path / "empty").mkdir()
    (tmp_path / "some").mkdir()
    write_shard(tmp_path / "some" / "heldout-000000-000000.arrow", texts, 154)
    config = Config(evaluation=EVALUATION, comparison=ComparisonConfig(pseudo_perplexity_documents=5))
    corpora = {name: tmp_path / name for name in ("some", "empty")}
    found = perplexities(config, Pretrained(tiny_bert, tiny_bert), corpora)
    total, count = one_by_one(tiny_bert, texts)
    assert found == {"some": pytest.approx(np.exp(total / count), rel=1e-4), "empty": None}


def test_causal_models_have_a_perplexity(tmp_path: Path, ray_cluster: None) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    from adapt.config import ObjectiveConfig
    from tests.tokenizers import byte_level

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=len(tokenizer)))
    model.eval().save_pretrained(tmp_path)
    texts = [[5, 9, 7, 8], [6, 5, 5]]
    write_shard(tmp_path / "heldout-000000-000000.arrow", texts, len(tokenizer))
    config = Config(evaluation=EVALUATION, objective=ObjectiveConfig(kind="causal"))
    with torch.inference_mode():
        losses = [
            torch.nn.functional.cross_entropy(
                model(torch.tensor([text])).logits[0, :-1], torch.tensor(text[1:]), reduction="sum"
            )
            for text in texts
        ]
    found = perplexities(config, Pretrained(tmp_path, tmp_path), {"a": tmp_path})
    assert found["a"] == pytest.approx(float(np.exp(float(sum(losses)) / 5)), rel=1e-4)
