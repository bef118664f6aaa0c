"""What a process says, and how it ends.

- `console`: messages, errors and exit codes.
- `live`: one line that shows how far the work is.
- `streams`: stdout and stderr that nobody reads any more.
- `library`: keeps a Python process as it was, where dontstop is used as a library.
"""
