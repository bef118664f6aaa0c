"""ELLE: the model grows before each domain, and replays mostly those earlier domains whose loss still falls.

- `method`: the plug-in and its options.
- `growth`: the numbers of added layers and heads, the changes of config.json, and checks of growth.
- `grown_model`: computes the weights of the larger model and its prompts.
- `past_text`: chooses which domain to replay, and runs the passes on the domain's text.
"""
