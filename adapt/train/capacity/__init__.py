"""Measures devices and estimates memory, to choose micro-batches and to forecast the cost of a training run.

- `device`: describes the device of a worker, and the CPU cores and GPUs that stages reserve.
- `flops`: computes the FLOPs of a training run, and the number of steps that a limit of FLOPs allows.
- `memory`: estimates the memory of a worker, part by part, and the largest micro-batch that fits.
- `micro_batch`: chooses the common micro-batch of all ranks, and tests it on the device.
- `forecast`: predicts memory, FLOPs, hours and price of a training run before it starts.
"""
