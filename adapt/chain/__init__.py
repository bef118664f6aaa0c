"""Reads and runs chain files, which define several stages, their start models, and the sets of values to sweep over."""
