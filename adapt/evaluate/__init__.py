"""Measuring models: held-out loss, what was forgotten, and how sure the figures are."""
