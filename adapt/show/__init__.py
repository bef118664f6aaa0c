"""Shows results: each result becomes plain blocks, and a renderer for each medium shows the blocks.

- `blocks`: sections of plain blocks, and the text of their cells.
- `terminal`: renders tables on stderr and sentences as log lines, or both as plain text.
- `drawing`: SVG drawings in the colours of the page, such as the loss curve of a training.
- `pages`: self-contained HTML pages, HTML for notebooks (both from `templates/`), and Markdown.
- `progress/`: the progress of chains and searches.
- `report/`: a page that compares the results of several stages.
"""
