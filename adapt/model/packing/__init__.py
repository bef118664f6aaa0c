"""Several documents in one sequence, without padding, and models that keep the documents apart.

- `packed`: where each document begins and ends.
- `attention`: attention within documents, for every encoder and decoder.
- `dropout`: the same as torch's, faster on CPUs.
- `isolation`: switches a model to this attention, and checks the result.
"""
