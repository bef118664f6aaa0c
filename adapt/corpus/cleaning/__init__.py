"""The blocks of `corpus.cleaning`, one a file: each drops documents for a named reason, or changes them."""
