"""The report as a page on this machine that follows a running chain.

- `now`: the section that says how far the chain is.
- `page`: that section and the report, made anew when they are asked for.
- `server`: serves the page on loopback.
"""
