"""Tests example sentences with one hidden word."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers import PreTrainedModel, PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

from adapt.evaluate.evaluation_task import LONGEST, SHORTEST, TOP, filled_masks
from adapt.evaluate.losses import Heldout
from adapt.model.load import load_model
from adapt.model.tokenizer import load_tokenizer
from tests.samples import WORDS, sentences

CPU = torch.device("cpu")

# Every second word has the ending "s", so it is two tokens. Its first token only looks like a whole word.
TEXTS = [
    " ".join(word + "s" * (place % 2) for place, word in enumerate(text.rstrip(".").split()))
    for text in sentences(120, seed=3, shortest=2, longest=40)
]


@pytest.fixture(scope="module")
def tokenizer(tiny_bert: Path) -> PreTrainedTokenizerFast:
    return load_tokenizer(tiny_bert)


@pytest.fixture(scope="module")
def model(tiny_bert: Path) -> PreTrainedModel:
    return load_model(tiny_bert)


def sample_of(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> Heldout:
    tokens = [np.array(tokenizer(text)["input_ids"], np.uint16) for text in texts]
    return Heldout(list(range(100, 100 + len(texts))), tokens)


@pytest.fixture(scope="module")
def sample(tokenizer: PreTrainedTokenizerFast) -> Heldout:
    return sample_of(TEXTS, tokenizer)


def test_examples_of_two_models_mask_the_same_words(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sample: Heldout
) -> None:
    torch.manual_seed(1)
    other = type(model)(model.config)
    old, new = (filled_masks(each, tokenizer, sample, 8, CPU) for each in (model, other))
    assert len(old) == len(new) == 8
    assert [(e["text"], e["answer"]) for e in old] == [(e["text"], e["answer"]) for e in new]
    assert [e["guesses"] for e in old] != [e["guesses"] for e in new]
    assert old == filled_masks(model, tokenizer, sample, 8, CPU)
    assert old[:3] == filled_masks(model, tokenizer, sample, 3, CPU)


def test_text_and_answer_make_the_document(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sample: Heldout
) -> None:
    examples = filled_masks(model, tokenizer, sample, 1000, CPU)
    texts = [tokenizer.decode(tokens[1:-1]) for tokens in sample.tokens]
    found = [texts.index(example["text"].replace("[MASK]", example["answer"])) for example in examples]
    assert found == sorted(found)
    assert len(found) > 10
    for place, example in zip(found, examples, strict=True):
        assert SHORTEST <= len(sample.tokens[place]) <= LONGEST
        assert example["text"].count("[MASK]") == 1
        assert f" {example['text']} ".count(" [MASK] ") == 1
        assert example["answer"] in WORDS  # the hidden word is a whole word, not the first part of a longer one
        assert len(example["answer"]) >= 4
    # the masked word is not always at the same position
    assert len({example["text"].split().index("[MASK]") for example in examples}) > 3


def test_guesses_are_the_models_first_with_their_probabilities(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sample: Heldout
) -> None:
    for example in filled_masks(model, tokenizer, sample, 5, CPU):
        encoded = tokenizer(example["text"], return_tensors="pt")
        with torch.no_grad():
            scores = model(**encoded).logits[0].softmax(-1)
        expected = scores[encoded["input_ids"][0] == tokenizer.mask_token_id][0].topk(TOP)
        assert [tokenizer.convert_tokens_to_ids(word) for word, _ in example["guesses"]] == expected.indices.tolist()
        assert [share for _, share in example["guesses"]] == pytest.approx(expected.values.tolist(), abs=1e-3)


def test_there_are_no_examples_without_suitable_documents(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sample: Heldout
) -> None:
    texts = ["model data", "the of and in is a " * 4, "jxfd mwgu pplp qqqq zzzz jxfd", "model " * 60]
    assert filled_masks(model, tokenizer, sample_of(texts, tokenizer), 5, CPU) == []
    assert filled_masks(model, tokenizer, Heldout([], []), 5, CPU) == []
    assert filled_masks(model, tokenizer, sample, 0, CPU) == []


def test_dropout_is_off(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sample: Heldout) -> None:
    model.train()
    assert filled_masks(model, tokenizer, sample, 3, CPU) == filled_masks(model, tokenizer, sample, 3, CPU)


@pytest.fixture(scope="module")
def byte_level() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like RoBERTa's, whose tokens include the space before a word."""
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(sentences(300), vocab_size=600, special_tokens=special)
    trained.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, **names)


def test_byte_level_tokens_are_shown_as_words(byte_level: PreTrainedTokenizerFast) -> None:
    config = RobertaConfig(
        vocab_size=len(byte_level),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=100,
    )
    texts = sentences(30, seed=5, shortest=8, longest=20)
    examples = filled_masks(RobertaForMaskedLM(config), byte_level, sample_of(texts, byte_level), 10, CPU)
    assert len(examples) == 10
    for example in examples:
        assert example["text"].replace("<mask>", f" {example['answer']}") in texts
        assert example["answer"] in WORDS
        assert not any("Ġ" in word for word, _ in example["guesses"])
