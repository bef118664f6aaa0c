"""Advice: which recipe to run first for a corpus and tasks, at what cost, and on what evidence."""
