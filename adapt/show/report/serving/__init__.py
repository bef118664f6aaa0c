"""The report as a page on this machine that follows a running chain.

- `page`: how far the chain is and the report, made anew when they are asked for.
- `server`: serves the page on loopback.
"""
