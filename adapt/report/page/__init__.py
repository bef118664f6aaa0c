"""What a report is written in, and how it looks.

- `blocks`: sections of plain blocks.
- `drawing`: SVG that takes its colours from the page.
- `html`: one file that needs nothing else, by the `templates/`.
- `markdown`: the same blocks without the drawings.
"""
