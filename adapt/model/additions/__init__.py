"""Additions to a model's architecture that cannot be merged into its weights: adapters, masks, experts, prompts.

A model with additions is an ordinary folder. Its config.json lists the additions, and its weight files include their
weights. transformers alone would ignore them with a warning; `adapt.model.load` attaches them.

- `table`: the kinds of additions, their entries in config.json, and the functions that attach them to a model.
- `domain_modules`: a separate set of weights for each domain, and the choice of a set.
- `masks`: masks of units for each domain, and plugins with such masks.
- `bottlenecks`: adapters, which are small bottlenecks in each layer.
- `soft_prompts`: vectors before each document.
- `prefixes`: keys and values before each document, in each layer.
- `experts`: separate feed-forward blocks for each domain.
- `exbert`: a smaller layer next to each layer, and a gate that mixes the outputs of both.
"""
