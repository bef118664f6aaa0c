"""LoRA and its variants: only low-rank adapters train, and are merged after each domain."""
