"""Packs several documents into one sequence without padding, and keeps them isolated from each other in the model.

- `packed`: packed sequences, and where each document begins and ends.
- `attention`: attention within documents, for every encoder and decoder.
- `padded`: documents as padded rows, for models without such attention.
- `dropout`: dropout like torch's, but faster on CPUs.
- `isolation`: chooses packing or padded rows for a model, and checks that documents are isolated.
"""
