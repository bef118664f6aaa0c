"""Memory and speed of devices: the number of sequences per pass, and the cost of a training run.

- `device`: the device of a worker, and the CPU cores and GPUs that stages reserve.
- `flops`: FLOPs of a training run, and the number of steps that a limit of FLOPs allows.
- `memory`: estimated memory of a worker, part by part, and the largest micro-batch that fits.
- `micro_batch`: the common micro-batch of all ranks, tried on the device.
- `forecast`: memory, FLOPs, hours and price of a training run before it starts.
"""
