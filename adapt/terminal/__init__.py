"""The messages of a process, and how the process ends.

- `console`: messages, errors and exit codes.
- `live`: a line or a table that shows progress and is redrawn at the same position.
- `streams`: lets a process outlive the readers of its stdout and stderr.
- `library`: restores the state of a Python process that uses dontstop as a library.
"""
