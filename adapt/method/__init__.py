"""How forgetting is fought: what a method adds to plain training.

- `base`: the class `Method` with its hooks, and what they get and return.
- `table`: which methods there are.
- `l2sp`, `ewc`: weights are held near where they were; `quadratic_penalty` has the arithmetic of both.
- `das/`: units that matter to past domains move less.
- `hat/`, `cpt`: masks of units for each domain.
- `adapters`, `prompt_tuning`, `demix`: a set of parameters for each domain; `domain_parameters` and `domain_sets`
  are what they share.
- `lora/`, `freeze`, `block_expansion`, `elle/`: a part of the model trains, or the model grows.
- `replay`, `derpp/`, `distill` with `teacher`: past text, or what an earlier model makes of text.
- `interpolate`, `average`: the model that is handed on is a mean.
- `sequence_modes`: one model per domain, one for all, and merging.
- `measurement`: for stages that add something up over rows of a text; `row_sums`: how, on devices and in files.
- `collectives`: sums and rows over all ranks, for losses that look beyond a rank's own documents.
"""
