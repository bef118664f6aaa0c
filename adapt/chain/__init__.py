"""Reads and runs chain files, which define several stages, their initial models, and sets of values to sweep over."""
