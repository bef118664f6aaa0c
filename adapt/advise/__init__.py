"""Advises which recipe to run first for a corpus and tasks, with the expected cost and the evidence."""
