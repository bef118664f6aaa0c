"""Tests pseudo-perplexity, and example sentences with one hidden word."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers import PreTrainedModel, PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

from adapt.config import Config, EvaluationConfig
from adapt.corpus.token_shards import write_shard
from adapt.evaluate.evaluation_task import LONGEST, SHORTEST, TOP, filled_masks, perplexities, pseudo_losses
from adapt.evaluate.losses import Heldout
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from tests.samples import WORDS, sentences

CPU = torch.device("cpu")
EVALUATION = EvaluationConfig(sequence_length=16, micro_batch=2)


def documents(count: int, longest: int) -> list[list[int]]:
    draw = np.random.default_rng(3)
    return [[2, *draw.integers(5, 150, draw.integers(1, longest)).tolist(), 3] for _ in range(count)]


def one_by_one(folder: Path, pieces: list[list[int]]) -> tuple[float, int]:
    """Returns the summed loss and the number of predicted tokens, with one pass per masked token.

    Special tokens (ids 0 to 4) are not masked.
    """
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
    texts = [*documents(4, 40), [2, 3], [2, 1, 3]]  # the last two pieces contain only special tokens
    sample = Heldout(list(range(len(texts))), [np.array(text, np.uint16) for text in texts])
    evaluation = EvaluationConfig(sequence_length=16, micro_batch=micro_batch)
    losses, counts = pseudo_losses(load_model(tiny_bert), load_tokenizer(tiny_bert), sample, evaluation, CPU)
    for text, loss, count in zip(texts, losses, counts, strict=True):
        pieces = [text[start : start + 16] for start in range(0, len(text), 16)]
        expected, number = one_by_one(tiny_bert, pieces)
        assert count == number
        assert loss == pytest.approx(expected, abs=1e-4 * max(number, 1))


def test_pseudo_perplexity_of_corpora_on_the_cluster(tiny_bert: Path, tmp_path: Path, ray_cluster: None) -> None:
    texts = documents(5, 12)
    (tmp_path / "empty").mkdir()
    (tmp_path / "some").mkdir()
    write_shard(tmp_path / "some" / "heldout-000000-000000.arrow", texts, 154)
    config = Config(evaluation=EVALUATION)
    corpora = {name: tmp_path / name for name in ("some", "empty")}
    found = perplexities(config, Pretrained(tiny_bert, tiny_bert), corpora, 5, tmp_path)
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
    found = perplexities(config, Pretrained(tmp_path, tmp_path), {"a": tmp_path}, 100, tmp_path)
    assert found["a"] == pytest.approx(float(np.exp(float(sum(losses)) / 5)), rel=1e-4)


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
