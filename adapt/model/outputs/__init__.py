"""What a model says of packed text.

- `head`: losses and scores at chosen positions only.
- `cross_entropy`: the losses, without all scores at once.
- `divergence`: how far two models' scores are apart, likewise.
- `states`: the hidden states, of tokens and of documents.
- `features`: one vector for each text.
"""
