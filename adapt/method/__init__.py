"""Methods that reduce forgetting. Each method changes plain training through hooks.

- `base`: the class `Method` with its hooks, and the types that hooks take and return.
- `table`: the table of all methods.
- `weight_pulls`: L2-SP and EWC, penalties that keep weights near earlier values. `quadratic_penalty` computes them.
- `das/`: smaller updates for units that are important to past domains.
- `hat/`: HAT and CPT, with masks of units for each domain.
- `domain_parameters`: adapters, DEMix, prompts and prefixes, with a set of added parameters for each domain.
  `domain_sets` adds the sets to models.
- `lora/`, `frozen_parts`, `elle/`: methods that train only a part of the model, or make the model larger.
- `derpp/`, `distill` with `teacher`: training on past text, or towards the outputs of an earlier model.
- `weight_means`: methods that average the trained model with an earlier model, or over the last steps. The next domain
  starts from the mean.
- `sequence_modes`: one model per domain, one model for all domains, merged models, and replay of past text.
- `measurement`: shared code of stages that sum measurements over the rows (token sequences) of a text. `row_sums` has
  the part of this code that runs on the devices.
- `collectives`: computes sums and gathers rows over all ranks, for losses that compare documents of several ranks.
"""
