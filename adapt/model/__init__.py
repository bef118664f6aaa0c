"""Models and tokenizers: find them, load them, predict with them, save them. No Ray and no DeepSpeed in here."""
