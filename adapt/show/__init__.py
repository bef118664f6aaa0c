"""Shows results: each result becomes plain blocks, and a renderer for each medium shows the blocks.

- `blocks`: sections of plain blocks, and the text of their cells.
- `renderers`: tables on stderr and sentences as log lines; plain text; Markdown; self-contained HTML pages, and HTML
  for notebooks (both from `templates/`).
- `drawing`: SVG drawings in the colours of the page, such as the loss curve of a training run.
- `progress/`: the progress of chains and searches.
- `report/`: a page that compares the results of several stages.
"""
