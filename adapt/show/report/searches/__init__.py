"""Searches for good values: their trials, which fields mattered, and what tuning gained.

- `found`: a search as its record tells it.
- `curves`: how trials went.
- `figures`: the drawings.
- `section`: sentences, tables and drawings in reading order.
"""
