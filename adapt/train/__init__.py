"""Training, from Ray Train to the step of a rank.

- `job`: what the driver tells the workers, and the files through which they answer.
- `ranks`: hands a function to Ray Train; `launch`: hands it a job.
- `local_group`: the process group of ranks on a Ray of our own.
- `worker`: one rank, from its first line to the model that it hands over.
- `loop`: the steps of a rank.
- `engine`: one optimizer step at any ZeRO stage.
- `deepspeed_parts`: the undocumented names of DeepSpeed, each looked up before it is used.
- `zero`: what DeepSpeed is told.
- `optimizer`: AdamW, and what decays.
- `schedule`: how long a run is, and the learning rate at each step.
- `precision`: which arithmetic a machine can do, and all ranks together.
- `options`: what is done to a model before it trains.
- `compiler`: whether torch.compile can work here.
- `allocator`: freed memory is kept.
- `threads`: how many a process computes with.
- `capacity/`: what devices can hold and do, so how many sequences at once, and how long a run takes.
- `checkpoints/`: what a run can be resumed from, also on other resources or for longer.
- `tracking/`: what a run says of itself while it trains.
- `failure`: carries errors of a rank to the user.
- `verdict`: which of them end a training at once.
- `guard`: no two runs train in one folder.
- `elastic/`: how many workers there are, where that may change, and checkpoints out of turn.
- `over_rows`: a function over batches of rows, for what methods measure beside training.
"""
