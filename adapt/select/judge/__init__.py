"""What a selection is beside a random one.

- `nearness`: the figures.
- `gain`: how they are measured, and documents to read.
- `layout`: how far texts lie apart, and a map of them.
"""
