"""Packs several documents into one sequence without padding, and keeps them isolated from each other in the model.

- `packed`: packed sequences, and the boundaries of their documents.
- `attention`: computes attention only within documents, for every encoder and decoder. It also has a dropout that is
  faster on CPUs than torch's.
- `flash`: calls torch's flash attention on GPUs.
- `padded`: runs documents as padded rows, for models that cannot use this attention.
- `isolation`: chooses packing or padded rows for a model, and checks that documents are isolated.
"""
