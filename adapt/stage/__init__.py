"""Defines all kinds of stages. A stage is a frozen dataclass whose fields are its settings and its input stages.

- `context`: configuration, models and files of a job, from which its stages are built.
- `preflight`: checks before anything runs.
- `budget`: keeps a job or a chain within its budget of device time or cost.
- `text_sources`: lists of files with their digests, texts of labelled tasks, and lists of duplicate documents.
- `prepare_text`: tokenizes text into shards.
- `generate_text`: text that models generate, and its filters.
- `document_vectors`: vectors of documents.
- `select_documents`: selects documents that are worth training on, and compares them with random documents.
- `training_plan`: length and mixture of a training run, and dimensions of its model.
- `weigh_words`: weights of words for difference masking.
- `measured_training`: what is measured during a training run.
- `training_result`: the figures of a training run.
- `train`: a training run.
- `export_model`: the trained model, with its losses before and after training.
- `push_model`: the exported model on the Hugging Face Hub.
- `merge_stage`: merges several models into one.
- `finetuning`: prepares a labelled task, fine-tunes a model on it, and computes scores over all seeds.
- `model_evaluation`: losses, perplexity and neighbours of models, comparisons of models and domains, and advice.
- `benchmarks`: scores of models on standard tasks, and test items in their training text.
- `ensemble`: losses of several models, and the loss of their mean prediction.
- `sequence_matrices`: scores and losses of each model of a sequence on each domain.
- `domain_sequence`: the stage of a whole sequence.
- `vocabulary_stages`: how words are split into tokens, and models with more, fewer or new tokens.
- `add_head`: gives an encoder a new head for masked tokens, or changes the first model in other ways.
"""
