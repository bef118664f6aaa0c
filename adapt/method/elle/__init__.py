"""ELLE: the model grows before each domain, and replays text of earlier domains, mostly where its loss still falls.

- `method`: the plug-in and its options.
- `growth`: the size of the growth, its effect on config.json, and checks of what can grow.
- `grown_model`: the weights of the larger model and its prompts.
- `past_text`: chooses which domain to replay, and runs the passes on its text.
"""
