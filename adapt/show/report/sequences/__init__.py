"""Sequences of domains: what each method forgets, and how it scores.

- `runs`: those of a study, by method.
- `compared`: their figures, and each method against the baseline.
- `verdict`: what that comes to, in sentences.
- `tables`: figures by method, differences, and scores by task.
- `matrices`: heatmaps of what was measured after each domain.
- `figures`: losses over the domains.
- `front`: losses on the domains against general text, and the methods that no other beats on both.
- `costs`: what methods take, and how large the models are that they leave.
- `section`: all of these.
"""
