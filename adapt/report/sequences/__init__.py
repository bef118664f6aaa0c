"""Sequences of domains: what each method forgets, and how it scores.

- `runs`: those of a study, by method.
- `compared`: their figures, and each method against the baseline.
- `verdict`: what that comes to, in sentences.
- `tables`: figures by method, differences, and scores by task.
- `matrices`: heatmaps of what was measured after each domain.
- `figures`: losses over the domains.
- `section`: all of these.
"""
