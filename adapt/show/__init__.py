"""How results are shown: plain blocks, and a renderer for each place where people read them.

- `blocks`: sections of plain blocks, and the text of their cells.
- `terminal`: tables on stderr, sentences as log lines, and both as plain text.
- `drawing`: SVG that takes its colours from the page, such as the loss of a training.
- `pages`: one file of HTML that needs nothing else, what a notebook shows (both by the `templates/`), and Markdown.
- `progress/`: how far chains and searches are.
- `report/`: results of several stages compared, as a page.
"""
