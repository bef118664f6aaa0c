"""The command `dontstop`. It alone owns signals, exit codes and the environment; `adapt.api` is what it calls.

- `main`: the commands, their help, completion.
- `chain`: chains of stages, here and on clusters.
- `tune`: searches.
- `demo`: the demo, and how long it takes here.
- `init`: writes a first configuration for a user's files.
- `look`: what these files hold.
- `doctor`: checks the machine.
- `completion`: completes commands in shells.
- `recipes`: the recipes and spaces that come with the package.
"""
