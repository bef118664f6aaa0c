"""Selects the documents of a large pool that are worth training on for a task.

Every selection gives each document of a pool a score, and the documents with the highest scores are selected until a
budget is used up. The selected documents are written to TEXTS_FILE, one line per document with its `text`, its `id`
(the number of its record among all records of the pool, from 0), its `score`, and its origin: `part`, the number of the
file in the pool's manifest, from 0, and `record`, the number of the record in that file, from 1. The steps after the
scoring are the same for all selections.

- `selection`: the base class of selections, and random selection.
- `table`: finds selections by name, and reads lists of selections.
- `pool`: reads the documents to choose from, and removes some documents first, such as evaluation text.
- `choose`: narrows the pool and fills the budget with the documents that have the highest scores.
- `markup`: removes markers, such as tags, that occur in the target but not in the pool.
- `grams`, `gram_regression`: represent texts as hashed n-grams, and fit regressions on them.
- `ngram_selections`, `perplexity`: selections by n-grams and by loss.
- `document_losses`: computes the losses of a language model on documents.
- `vector_search`: searches for documents near given vectors; also has selection `knn`.
- `tsds`, `semdedup`: further selections by vectors.
- `selection_metrics`: compares a selection with random documents.
"""

TEXTS_FILE = "texts.jsonl"
