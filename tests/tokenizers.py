"""Trains small tokenizers of every family when a test needs them, with the steps of published tokenizers."""

import json
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.samples import sentences

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ODD = ["naïve café", "don't stop-gradient (see 3.14)!", "Über-große", "日本語", "E = mc²"]
TEXTS = [*sentences(300, seed=7), *ODD * 20]


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    )
    return tokenizer


@cache
def wordpiece() -> Tokenizer:
    """Returns a WordPiece tokenizer like BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _trained(tokenizer, trainers.WordPieceTrainer(vocab_size=250, special_tokens=SPECIAL, show_progress=False))


@cache
def byte_level() -> Tokenizer:
    """Returns a byte-level tokenizer like GPT-2's. Token offsets include the space before a word, unlike RoBERTa's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(
        tokenizer,
        trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )


@cache
def roberta() -> Tokenizer:
    """Returns a byte-level tokenizer like RoBERTa's."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    special = {name: (name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")}
    tokenizer.post_processor = processors.RobertaProcessing(special["</s>"], special["<s>"])
    return tokenizer


@cache
def unigram() -> Tokenizer:
    """Returns a unigram tokenizer, as in XLM-R and T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    return _trained(
        tokenizer,
        trainers.UnigramTrainer(vocab_size=250, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False),
    )


@cache
def wordless() -> Tokenizer:
    """Returns a tokenizer like Llama 2's, which does not split text into words first."""
    words = unigram_pieces()
    tokenizer = Tokenizer(models.Unigram(words, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    special = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=special)
    return tokenizer


def unigram_pieces() -> list[tuple[str, float]]:
    """Returns the tokens of the tokenizer `unigram` with their scores."""
    return [(piece, score) for piece, score in json.loads(unigram().to_str())["model"]["vocab"]]


FAMILIES = {
    "wordpiece": wordpiece,
    "byte-level": byte_level,
    "roberta": roberta,
    "unigram": unigram,
    "wordless": wordless,
}
