"""Makes a small ELECTRA with random weights and another model's tokenizer, for benchmarks/rtd_study.yaml.

python -m benchmarks.small_electra --tokenizer ../shared/models/bert-tiny-general --out /tmp/electra
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoTokenizer, ElectraConfig, ElectraForMaskedLM

LAYERS, WIDTH = 2, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    tokenizer.save_pretrained(arguments.out)
    torch.manual_seed(0)
    config = ElectraConfig(
        vocab_size=len(tokenizer),
        embedding_size=WIDTH,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=512,
    )
    model = ElectraForMaskedLM(config)
    model.save_pretrained(arguments.out)
    print(f"{arguments.out}: {model.num_parameters() / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
