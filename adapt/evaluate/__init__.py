"""Measures models: held-out loss, forgetting, features, and 95% intervals.

- `measurements`: the results, as stored in records.
- `verdict`: says in one sentence whether a new model is better than the one that it was made from.
- `measure_model`: measures one model on some corpora in a Ray task, and finds the texts that it was trained on.
- `evaluation_task`: the code of this Ray task: loads the model, measures losses, predicts words for examples.
- `losses`: the loss of each document, also for models with separate parameters for each domain.
- `while_training`: held-out losses while a model trains: their cost, and the number of documents.
- `probe`: how well a simple classifier on the features of a model in training solves a task.
- `masked_predictions`: pseudo-perplexity.
- `knn_accuracy`: quality of features without training.
- `retrieval`: quality of sentence vectors, by retrieval on pairs, and their isotropy.
- `ensemble_losses`: the loss of the mean of several models' predictions.
- `intervals`: losses per token and per byte with their intervals.
- `benchmark`: standard evaluations: tasks of lm-evaluation-harness and MTEB.
- `compared_models`: the result of comparing models.
- `model_matrix`: compares several models on several domains.
- `domain_similarity`: compares domains by words and by losses.
- `card_metadata`: the head of a model card, which the Hugging Face Hub checks.
- `export_card`: the exported model with its model card.
"""
