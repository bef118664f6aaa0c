"""Shows the messages of a process, and determines how the process ends.

- `console`: messages, errors and exit codes; lets a process outlive the readers of its stdout and stderr.
- `live`: a line or a table that shows progress and is redrawn at the same position.
- `library`: restores the state of a Python process that uses dontstop as a library.
"""
