"""Measuring models: held-out loss, forgetting, and intervals of all figures.

- `measurements`: the results, as records store them.
- `measure_model`: one model on some corpora, as a Ray task; what it was trained on.
- `evaluation_task`: what the task does: load, measure, guess words.
- `losses`: the loss of each document, also by domain.
- `masked_predictions`: pseudo-perplexity.
- `knn_accuracy`: quality of features without training.
- `intervals`: losses per token and per byte with their intervals.
- `model_matrix`: several models on several domains.
- `domain_similarity`: how similar domains are.
- `export_card`: the exported model with its card.
"""
