"""Documents one after another in a sequence, without padding, and models that keep them apart.

- `packed`: where each document begins and ends.
- `prefixed`: keys and values that stand before those of every document.
- `attention`: within documents only, for every encoder and decoder.
- `dropout`: the same as torch's, sooner on CPUs.
"""
