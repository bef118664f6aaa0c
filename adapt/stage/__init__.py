"""Defines all kinds of stages. A stage is a frozen dataclass whose fields are its settings and its input stages.

- `context`: configuration, models and files of a job, from which its stages are built.
- `preflight`: checks before anything runs.
- `budget`: keeps a job or a chain within its budget of device time or cost.
- `text_sources`: lists of files with their digests, texts of tasks, duplicates.
- `prepare_text`: text as token shards.
- `generate_text`: text that models generate, and its filters.
- `document_vectors`: vectors of documents.
- `select_documents`: documents of a pool that are worth training on, compared with random ones.
- `training_plan`: length, mixture and dimensions of a training.
- `weigh_words`: weights of words for difference masking.
- `measured_training`: what a training measures while it runs.
- `training_result`: the figures of a training.
- `train`: a training run.
- `export_model`: the trained model, with its losses before and after training.
- `push_model`: the exported model on the Hugging Face Hub.
- `merge_stage`: models merged from others.
- `finetuning`: a labelled task, a model fine-tuned on it, scores over all seeds.
- `model_evaluation`: losses, perplexity and neighbours of models, comparisons of models and domains, and advice.
- `benchmarks`: scores of models on standard tasks, and test items in their training text.
- `ensemble`: losses of several models, and of their mean prediction.
- `sequence_matrices`: scores and losses of each model of a sequence on each domain.
- `domain_sequence`: the stage of a whole sequence.
- `vocabulary_stages`: how words are split into tokens, and models with more, fewer or new tokens.
- `add_head`: an encoder with a new head for masked tokens.
"""
