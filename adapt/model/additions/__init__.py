"""What a model has in addition to its architecture, and cannot be merged into it: adapters, masks, experts, prompts.

A model with additions is an ordinary folder whose config.json names the additions and whose weights hold theirs too.
transformers alone would leave them out with a warning; `adapt.model.load` attaches them.

- `table`: the kinds, the entries of config.json, and how a model gets them.
- `domain_modules`: a separate set for each domain, and the choice of a set.
- `masks`: of units for each domain, and plugins that have them.
- `bottlenecks`: small bottlenecks in each layer.
- `soft_prompts`: vectors before each document.
- `prefixes`: keys and values in each layer.
- `experts`: feed-forward blocks of each domain.
- `exbert`: a smaller layer next to each layer, and a gate.
"""
