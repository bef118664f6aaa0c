"""Fine-tunes a model on a labelled task in one of several modes, and tests it.

- `ray_task`: runs one model, task and seed as one Ray task, and writes its result.
- `seed_run`: the code of that Ray task: loads the model, trains, predicts.
- `finetune_modes`: full fine-tuning, low-rank additions, extracted features, linear probe.
- `finetune_loop`: settings, device, batches, steps and dev scores, until training ends.
- `examples`: a prepared task as packed batches.
- `classifier`: an encoder or decoder with a head, its loss and its form on disk.
- `metrics`: scores, entities and calibration of predictions.
"""
