"""Embedders: a vector for each text, so that texts can be compared by the cosine of theirs.

- `base`: what an embedder is; `table`: which there are.
- `tfidf`, `static`, `transformer`, `vampire`: one each, the cheapest first.
- `tokens`: the tokens of texts, for those that read a model.
- `bags`: texts as counts of words, for `tfidf` and `vampire`.
- `vae`, `npmi`: the topic model of `vampire`, and the coherence by which its training ends.
- `sources`: texts with their ids, in chunks that tasks read.
- `glance`: whether the embedder knows what texts are made of, before all are embedded.
- `run`: embedding on the cluster; `learn`: learning on it.
- `written`: the vectors as files; `indexed`: an index of them, built on the cluster.
"""
