"""Implements the command `dontstop`.

Unlike `adapt.api`, commands set signal handlers, exit codes and environment variables of the whole process.

- `main`: lists and runs commands, prints help, shipped recipes and completion scripts for shells, and pushes models to
  the Hugging Face Hub.
- `chain_command`: `dontstop chain`, on this machine and on clusters.
- `tune_command`: `dontstop tune`, which runs searches.
- `demo_command`: `dontstop demo`, with a forecast of its time on this machine.
- `init`: `dontstop init`, which writes a first configuration for a user's files.
- `draft_length`: chooses the length of the first training run.
- `inspect_files`: detects fields and formats of a user's files.
- `doctor`: `dontstop doctor`, which checks the machine.
"""
