"""The command `dontstop`. It alone owns signals, exit codes and the environment; `adapt.api` is what it calls.

- `main`: the commands, their help, recipes that come with the package, completion in shells.
- `chain_command`: chains of stages, here and on clusters.
- `tune_command`: searches.
- `demo_command`: the demo, and how long it takes here.
- `init`: writes a first configuration for a user's files.
- `inspect_files`: what these files hold.
- `doctor`: checks the machine.
"""
