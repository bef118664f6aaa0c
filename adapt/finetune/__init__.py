"""Fine-tuning: a model learns a labelled task in one of several modes, and is tested on it.

- `ray_task`: one model, one task, one seed, as one Ray task, and its result.
- `seed_run`: what the task does: load, learn, predict.
- `finetune_modes`: full fine-tuning, low-rank additions, extracted features, linear probe.
- `finetune_loop`: settings, device, batches, steps and dev scores, until training ends.
- `examples`: a prepared task as packed batches.
- `classifier`: an encoder or decoder with a head, its loss and its form on disk.
- `metrics`: scores, entities and calibration of predictions.
"""
