"""How results are shown: plain blocks, and a renderer for each place where people read them.

- `blocks`: sections of plain blocks.
- `cells`: how values become the text of cells.
- `terminal`: tables on stderr, sentences as log lines; `text`: both as plain text.
- `curves`: the loss of a training.
- `drawing`: SVG that takes its colours from the page.
- `progress/`: how far chains and searches are.
- `report/`: results of several stages compared, as a page.
- `html`: one file that needs nothing else, and what a notebook shows, by the `templates/`.
- `markdown`: the same blocks without the drawings.
"""
