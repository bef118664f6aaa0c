"""ELLE: the model grows before each domain. Replay prefers those earlier domains whose loss is still falling.

- `method`: the plug-in and its options.
- `growth`: counts the added layers and heads, changes config.json, and checks whether a model can grow.
- `grown_model`: computes the weights of the larger model and its prompts.
- `past_text`: chooses which earlier domain to replay, and trains on rows of its text.
"""
