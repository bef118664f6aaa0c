"""What devices can hold and do: how many sequences at once, and what a run will take.

- `device`: what a worker computes on.
- `probe`: looks at it from another process.
- `flops`: the work of a training.
- `compute`: a limit of that work in steps.
- `utilization`: how much of what a device could do a run uses.
- `memory`: what a worker needs, part by part.
- `fit`: how many sequences that leaves room for.
- `trial`: a pass on the real device, to see.
- `passes`: the number that all ranks take.
- `less`: what takes less memory.
- `exhausted`: says what takes less memory where a device has run out of it.
- `killed`: the same where Ray's memory monitor has killed a worker.
- `needs`: what stages take of a machine while they run.
- `forecast`: memory, work, hours and price before anything is started.
"""
