"""Trains a model, from the call of Ray Train to the optimizer step on each rank.

- `training_run`: the settings that the driver sends to the workers, and the files in which workers return their
  results.
- `ray_train`: hands a function, or a training job, to Ray Train, and decides after which errors a run ends at once.
- `rank_group`: starts a watch for each rank, and the process group of the ranks.
- `worker`: one rank, from its start to the exported model.
- `loop`: the training loop of a rank.
- `points`: measures the model between steps, and keeps the weights of an earlier point.
- `stopping`: decides from the measurements of `points` when a training run ends, and which model it exports.
- `engine`: one optimizer step at any ZeRO stage.
- `deepspeed_parts`: gives checked access to undocumented attributes of DeepSpeed.
- `optimizer`: AdamW, and which parameters get weight decay.
- `schedule`: number of steps of a run, and the learning rate at each step.
- `phases`: the phases of a run, each with its own configuration and length.
- `model_options`: precision, dropout, gradient checkpointing, compilation and frozen parameters of a model.
- `worker_process`: number of threads of a worker process, and how the process ends.
- `capacity/`: memory and speed of devices, which give the micro-batch size and the forecast of a run's duration.
- `checkpoints/`: saves checkpoints, and resumes runs from checkpoints, even with other resources or a longer schedule.
- `meter`: measures loss, speed, and the time that devices wait for data.
- `held_time`: counts how long a run holds its devices, and the useful share of this time (goodput).
- `metric_trackers`: writes metrics to files, TensorBoard, Ray, MLflow and W&B, and shows them in the terminal.
- `restarts`: counts the restarts of a training run by cause, and the steps that had to be repeated.
- `spikes`: finds steps whose loss or gradient norm is far above recent values, and skips these steps.
- `failure`: reports errors of a rank to the user, and says how to use less memory.
- `elastic_policy`: changes the number of workers during a training run.
- `over_rows`: calls a function on batches of rows on the cluster, for methods that compute values outside of training.
"""
