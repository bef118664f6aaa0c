"""Selection: which documents of a large pool are worth training on for a task.

Every way of selecting gives each document of a pool a score, and those with the highest are taken until a budget is
full. What was taken is TEXTS_FILE, a line a document with its `text`, its `id` (the number of its record among all
records of the pool, from 0), its `score`, and where it came from: `part`, the number of the file in the pool's
manifest, from 0, and `record`, the number of the record in that file, from 1. What follows does not depend on the way.

- `base`: what a selection is.
- `table`: the selections by name, and lists of them.
- `pool`: the documents to choose from, read as often as a selection asks.
- `guards`: what must leave it first.
- `highest`: those with the highest scores, in one pass.
- `near`: no two near copies of a text.
- `tokens`: how many tokens texts have.
- `choose`: from the pool to what is taken.
- `markup`: signs of the target that the pool lacks.
- `chunks`: texts a few at a time.
- `grams`: texts as hashed n-grams; `known_grams`: those of a target that occur in the pool.
- `random`, `dsir`, `classifier`, `perplexity`: a selection each.
- `vectors/`: those that compare the vectors of documents.
- `judge/`: what a selection is beside a random one.
"""

TEXTS_FILE = "texts.jsonl"
