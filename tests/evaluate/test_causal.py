"""Tests a decoder in all steps: preparation, training, evaluation, examples, export and loading."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from adapt.config import EvaluationConfig, ObjectiveConfig
from adapt.corpus.corpora import Form
from adapt.corpus.encode_chunks import Encode
from adapt.corpus.prepare_corpus import chunk_row
from adapt.corpus.shard_batches import Feed
from adapt.evaluate.evaluation_task import LONGEST, SHORTEST, SHORTEST_PREFIX, TOP, next_words
from adapt.evaluate.losses import Heldout, heldout_losses
from adapt.model.load import load_model, save_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.objective.masking import make
from adapt.objective.objective import Batch
from tests.samples import sentences
from tests.tokenizers import byte_level, wordless

CPU = torch.device("cpu")
CAUSAL = ObjectiveConfig(kind="causal")
EVALUATION = EvaluationConfig(sequence_length=64, micro_batch=4, max_documents=40)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a tiny decoder, a tokenizer without mask and padding tokens, and a prepared corpus."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp(request.param)
    backend = byte_level() if request.param == "gpt2" else wordless()
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 2}
    if request.param == "gpt2":
        GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **ids)).save_pretrained(folder)
    else:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        config = LlamaConfig(**sizes, intermediate_size=48, max_position_embeddings=64, **ids)
        LlamaForCausalLM(config).save_pretrained(folder)
    texts = sentences(200, seed=6, shortest=4, longest=12)
    (folder / "corpus").mkdir()
    Encode(Pretrained(folder, folder), folder / "corpus", 0.3, Form.of(CAUSAL))(chunk_row(0, 0, texts, None))
    return folder


def test_a_causal_model_is_trained_measured_and_exported(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, causal=True)
    objective = make(CAUSAL, tokenizer, 0)
    sample = Heldout.sample(folder / "corpus", EVALUATION, objective.columns())
    before, counts = heldout_losses(model, objective, sample, EVALUATION, CPU)
    pieces = [-(-len(tokens) // 64) for tokens in sample.tokens]
    assert counts.tolist() == [len(tokens) - piece for tokens, piece in zip(sample.tokens, pieces, strict=True)]
    # The untrained model predicts all tokens with about equal probability.
    assert before.sum() / counts.sum() == pytest.approx(np.log(len(tokenizer)), rel=0.05)

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for columns in Feed.of(str(folder / "corpus"), 64, 8, 0, 0, 10).read():
        corrupted = objective.corrupt(Batch.of(columns))
        loss = objective.loss(model, corrupted) / len(corrupted.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after, _ = heldout_losses(model, objective, sample, EVALUATION, CPU)
    assert after.sum() < 0.9 * before.sum()

    save_model(folder, model.state_dict(), tokenizer, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [type(model).__name__]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    saved = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert saved.get_vocab() == tokenizer.get_vocab()
    ids = torch.from_numpy(sample.tokens[0].astype(np.int64))[None, :64]
    with torch.no_grad():
        alone = loaded(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1)
    assert float(alone) == pytest.approx(after[0], rel=1e-4) or len(sample.tokens[0]) > 64


def test_next_words_are_predicted_from_the_preceding_tokens(folder: Path) -> None:
    tokenizer, model = load_tokenizer(folder), load_model(folder, causal=True)
    sample = Heldout.sample(folder / "corpus", EVALUATION)
    examples = next_words(model, tokenizer, sample, 6, CPU)
    assert len(examples) == 6
    assert examples == next_words(model, tokenizer, sample, 6, CPU)
    texts = [
        tokenizer.decode(tokens, skip_special_tokens=True)
        for tokens in sample.tokens
        if SHORTEST <= len(tokens) <= LONGEST
    ]
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    for example in examples:
        prefix = example["text"].removesuffix(" …")
        assert any(text.startswith(f"{prefix} {example['answer']}") for text in texts)
        (tokens,) = [t for t in sample.tokens if _is_prefix(tokenizer, t, prefix, example["answer"])][:1]
        place = _place(tokenizer, tokens, prefix)
        assert place >= SHORTEST_PREFIX
        with torch.no_grad():
            logits = plain(input_ids=torch.from_numpy(tokens[:place].astype(np.int64))[None]).logits[0, -1]
        expected = logits.softmax(-1).topk(TOP)
        assert [word for word, _ in example["guesses"]] == [tokenizer.decode([i]).strip() for i in expected.indices]
        assert [share for _, share in example["guesses"]] == pytest.approx(expected.values.tolist(), abs=1e-3)


def _place(tokenizer, tokens: np.ndarray, prefix: str) -> int:
    """Returns the largest number n such that the first n tokens have the text `prefix`.

    There may be several such numbers, because special tokens have no text.
    """
    return max(n for n in range(len(tokens)) if tokenizer.decode(tokens[:n], skip_special_tokens=True) == prefix)


def _is_prefix(tokenizer, tokens: np.ndarray, prefix: str, answer: str) -> bool:
    return tokenizer.decode(tokens, skip_special_tokens=True).startswith(f"{prefix} {answer}")
