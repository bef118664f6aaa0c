"""What devices can hold and do: how many sequences at once, and what a run will take.

- `device`: what a worker computes on, and what stages take of a machine.
- `flops`: the work of a training, and a limit of that work in steps.
- `memory`: what a worker needs, part by part, and how many sequences that leaves room for.
- `micro_batch`: the number of sequences that all ranks take, tried on the device.
- `out_of_memory`: says what takes less memory where there was not enough.
- `forecast`: memory, work, hours and price before anything is started.
"""
