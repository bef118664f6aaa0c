"""Selection: which documents of a large pool are worth training on for a task.

Every way of selecting writes TEXTS_FILE, a line a document with its `text`, its `id` (the place in the pool, a number)
and its `score` (higher is taken first), so that what follows does not depend on the way.
"""

TEXTS_FILE = "texts.jsonl"
