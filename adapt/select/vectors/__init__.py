"""Selections that compare the vectors of documents, which stages make before.

- `nearby`: the documents near some vectors, those of the target, and scores by the ids of documents.
- `knn`: the nearest documents of every text of the target.
- `transport`: the plan of optimal transport.
- `tsds`: documents by the mass that it gives them.
- `copies`: clusters of vectors, and the copies in them.
- `semdedup`: of documents whose vectors nearly agree one is left.
"""
