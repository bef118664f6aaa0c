"""Makes a small GPT-2 with random weights and its own byte-level BPE tokenizer, for benchmarks/das_decoder.yaml.

With --encoder, it also creates a BERT of the same size and with the same tokenizer, for
benchmarks/decoder_study.yaml. The GPT-2 has 3.4 M parameters; with the second command it has 20 M, for
benchmarks/study_decoder.yaml.

python -m benchmarks.small_decoder --data ../shared/data --out /tmp/decoder
python -m benchmarks.small_decoder --data ../shared/data --out /tmp/decoder20 --layers 5 --width 512 --heads 8
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
VOCABULARY, DOCUMENTS = 8192, 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", type=Path, help="also write an encoder of the same size there")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=6)
    arguments = parser.parse_args()
    tokenizer = trained(texts(arguments.data / "corpora" / "general_enwiki.jsonl.gz"))
    tokenizer.save_pretrained(arguments.out)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=256,
        n_embd=arguments.width,
        n_layer=arguments.layers,
        n_head=arguments.heads,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = GPT2LMHeadModel(config)
    model.save_pretrained(arguments.out)
    print(f"{arguments.out}: {model.num_parameters() / 1e6:.1f} M parameters")
    if arguments.encoder:
        write_encoder(tokenizer, config, arguments.encoder)


def write_encoder(tokenizer: PreTrainedTokenizerFast, decoder: GPT2Config, folder: Path) -> None:
    """Writes a BERT of the decoder's size with the same tokenizer and a mask token."""
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=256,
            hidden_size=decoder.n_embd,
            num_hidden_layers=decoder.n_layer,
            num_attention_heads=decoder.n_head,
            intermediate_size=4 * decoder.n_embd,
        )
    )
    model.save_pretrained(folder)
    print(f"{folder}: {model.num_parameters() / 1e6:.1f} M parameters")


def texts(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt") as lines:
        for line in islice(lines, DOCUMENTS):
            yield json.loads(line)["text"]


def trained(corpus: Iterator[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=letters)
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, unk_token=END, model_max_length=256
    )


if __name__ == "__main__":
    main()
