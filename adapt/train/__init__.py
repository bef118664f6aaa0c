"""Training, from Ray Train to the step of a rank.

- `training_run`: what the driver tells the workers, and the files through which they answer.
- `ray_train`: hands a function, or a training job, to Ray Train, and says which errors end it at once.
- `local_group`: the process group of ranks on one machine.
- `worker`: one rank, from its first line to the model that it hands over.
- `loop`: the steps of a rank.
- `engine`: one optimizer step at any ZeRO stage.
- `deepspeed_parts`: the undocumented names of DeepSpeed, each looked up before it is used.
- `optimizer`: AdamW, and what decays.
- `schedule`: how long a run is, and the learning rate at each step.
- `precision`: which arithmetic a machine can do, and all ranks together.
- `model_options`: what is done to a model before it trains.
- `worker_process`: the threads of a process, and how it ends.
- `capacity/`: what devices can hold and do, so how many sequences at once, and how long a run takes.
- `checkpoints/`: what a run can be resumed from, also on other resources or for longer.
- `meter`: loss, speed, and how long the devices waited.
- `metric_trackers`: metrics to files and trackers.
- `progress_display`: shows them at the driver.
- `failure`: carries errors of a rank to the user.
- `elastic/`: how many workers there are, where that may change, and checkpoints out of turn.
- `over_rows`: a function over batches of rows, for what methods measure beside training.
"""
