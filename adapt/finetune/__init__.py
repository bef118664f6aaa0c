"""Fine-tunes a model on a labelled task in one of several modes, and evaluates it.

- `ray_task`: runs one model, task and seed as one Ray task, and writes its result.
- `seed_run`: the code of that Ray task: loads the model, trains in one of the modes (full fine-tuning, LoRA, extracted
  features, linear probe), predicts.
- `finetune_loop`: the training loop with its settings, its device and its precision.
- `examples`: reads a prepared task and packs its examples into batches.
- `classifier`: an encoder or decoder with a classification head, its loss, and how it is saved.
- `metrics`: scores, entities and calibration of predictions.
"""
