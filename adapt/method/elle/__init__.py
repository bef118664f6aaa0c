"""ELLE: the model grows before each domain, and text of the domains before comes again where it helps most.

- `options`, `method`: the plug-in.
- `growth`: by how much the model grows, its prompts, and what that makes of a config.json.
- `grown_model`: the weights of the larger model.
- `past_text`: reads past text and chooses the domain that comes next.
"""
