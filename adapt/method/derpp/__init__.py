"""DER++: rows of the past come again, with what the model made of them.

- `options`, `method`: the plug-in, which replays.
- `reservoir`: keeps a sample of the rows.
"""
