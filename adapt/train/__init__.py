"""Training: launch, the worker's loop, the DeepSpeed engine, checkpoints, schedule, trackers."""
