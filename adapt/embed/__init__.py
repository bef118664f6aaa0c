"""Embedders: a vector for each text, so that texts can be compared by the cosine of theirs.

- `base`: what an embedder is; `table`: which there are.
- `tfidf`, `static`, `transformer`, `vampire`: one each, the cheapest first.
- `distilled`: the embeddings of model2vec, for `static`.
- `tokens`: the tokens of texts, for those that read a model.
- `bags`: texts as counts of words, for `tfidf` and `vampire`.
- `vae`, `npmi`: the topic model of `vampire`, and the coherence by which its training ends; `topics`: that training;
  `topic_ranks`: the same on Ray Train.
- `sources`: texts with their ids, in chunks that tasks read.
- `glance`: a look at a few texts first; `run`: embedding on the cluster; `learn`: learning on it.
- `written`: the vectors as files; `indexed`: an index of them, built on the cluster.
"""
