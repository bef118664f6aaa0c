"""ELLE: the model grows before each domain, and text of the domains before comes again where it helps most.

- `method`: the plug-in and its options.
- `growth`: by how much the model grows, what that makes of a config.json, and what is refused.
- `grown_model`: the weights of the larger model and its prompts.
- `past_text`: chooses the domain that comes next, and the passes on its text.
"""
