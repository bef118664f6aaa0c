"""DAS (arXiv 2302.03241): what matters to past domains moves less, and what is new is set against what was known.

`options` and `method` are the plug-in. `stage` measures how important units are (`gradients` on the cluster's devices,
`measure` on one, by `views`, with `tokens`; `criteria` are others), `normalize` makes sizes of gradients into
importance, and `importance` is the file. `soft_mask` and `contrast` use it in training.
"""
