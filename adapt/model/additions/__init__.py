"""Additions to a model's architecture that cannot be merged into its weights: adapters, masks, experts, prompts.

The folder of a model with additions is an ordinary model folder. Its config.json lists the additions, and its weight
files include the additions' weights. If transformers loads the folder without this
project, it warns and ignores the additions. `adapt.model.load` attaches the additions.

- `table`: lists the kinds of additions, handles their entries in config.json, and attaches additions to a model.
- `domain_modules`: adapters and experts in every layer, with a separate set for each domain; chooses the set to use.
- `masks`: masks of units for each domain, and plugins with such masks.
- `prompts`: vectors before each document, and keys and values before each document in each layer.
- `exbert`: a smaller layer next to each layer, and a gate that mixes the outputs of both.
"""
