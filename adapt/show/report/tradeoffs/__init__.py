"""Models that were measured on the same two texts, the domain's and general ones: what each gained and forgot.

- `points`: the models, and what was measured of them.
- `front`: those that no other model beats on both texts, and the knee among them.
- `law`: the replay share that a fitted law names, where there are enough trainings.
- `section`: the verdict, the drawing and the tables.
"""
