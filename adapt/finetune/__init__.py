"""Fine-tuning: a model learns a labelled task, by several ways, and is tested on it.

- `run`: one model, one task, one seed, as one Ray task.
- `found`: what it hands back.
- `work`: what it does there: load, learn, predict.
- `settings`: what `null` means for a mode, task and model.
- `place`: where it computes, and in which arithmetic.
- `problem`: a prepared task, and answers to it.
- `examples`: a split's examples, cut to a length and packed.
- `grouped`: attention over small batches, in few different shapes.
- `head`: the new layers between an encoder and the labels.
- `classifier`: an encoder or decoder with them.
- `loss`: what a mistake costs.
- `loop`: batches, steps and dev scores, until training ends.
- `words`: trains only those rows of an embedding that are read.
- `tune`: trains all of a model, or low-rank additions.
- `frozen`: trains the new layers alone.
- `predict`: all examples in few passes.
- `scores`: what predictions are worth.
- `entities`: how many entities were found.
- `calibration`: whether a classifier is as sure as it is right.
- `save`: keeps the model as transformers loads it.
"""
