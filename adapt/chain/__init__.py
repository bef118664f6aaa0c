"""Reads and runs chain files, which define several stages, their start models, and the sets they are swept over."""
