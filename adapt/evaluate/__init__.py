"""Measures models: held-out loss, forgetting and the quality of features, with 95% intervals.

- `measurements`: the results, as stored in records.
- `verdict`: says in one sentence whether a new model is better than its initial model.
- `measure_model`: measures one model or an ensemble on some corpora in a Ray task, with intervals, and finds the texts
  that the model was trained on.
- `evaluation_task`: the code of this Ray task: loads the model, measures losses, predicts words
  for examples.
- `losses`: the loss of each document, also for models with separate parameters for each domain.
- `while_training`: measures held-out losses while a model trains, and limits the cost.
- `probe`: measures how well simple classifiers on the features of a model solve a task, also while the model trains.
- `retrieval`: measures sentence vectors by retrieval on pairs, and by their isotropy.
- `benchmark`: runs standard evaluations, which are tasks of lm-evaluation-harness and MTEB.
- `compared_models`: the results of comparing models, on texts and on standard tasks.
- `model_matrix`: compares several models on several domains, compares domains by words and by losses, and draws
  heatmaps.
- `card_metadata`: writes the metadata header of a model card, which the Hugging Face Hub checks.
- `export_card`: writes the exported model folder with its model card.
"""
