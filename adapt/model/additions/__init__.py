"""What a model carries beside its architecture and cannot be merged into it: adapters, masks, experts, prompts.

Its folder is an ordinary one whose config.json names the additions and whose weights hold theirs too. transformers
alone would leave them out, and say so; `adapt.model.load` and `adapt.model.base` attach them.

- `config`: the entries of config.json.
- `table`: the kinds, and how a model gets them.
- `weights`: reads such a folder.
- `domains`: sets of which each domain has its own; `route`: which set a text should take.
- `masks`: of units for each domain, and plugins that have them.
- `adapters`: small bottlenecks in each layer.
- `prompts`: vectors before each document; `prefixes`: keys and values in each layer.
- `experts`: feed-forward blocks of each domain.
- `exbert`: a smaller layer beside each, and a gate.
"""
