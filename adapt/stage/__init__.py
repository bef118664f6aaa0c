"""Defines all kinds of stages. A stage is a frozen dataclass whose fields are its settings and its input stages.

- `context`: collects the configuration, models and files from which the stages of a job are built.
- `preflight`: checks settings, weights and storage before anything runs.
- `budget`: keeps a job or a chain within its budget of device time or cost.
- `text_sources`: lists files with their digests, texts of labelled tasks, and duplicate documents.
- `prepare_text`: tokenizes text into shards.
- `generate_text`: generates text with models, and filters it.
- `document_vectors`: computes embeddings of documents.
- `select_documents`: selects documents that are worth training on, and compares them with random documents.
- `training_plan`: computes the length and the mixture of a training run, and the dimensions of its model.
- `weigh_words`: computes weights of words for difference masking.
- `measured_training`: plans the measurements during a training run.
- `training_result`: the metrics of a training run.
- `train`: trains a model.
- `export_model`: writes the trained model, with its losses before and after training.
- `push_model`: sends the exported model to the Hugging Face Hub.
- `merge_stage`: merges several models into one.
- `finetuning`: prepares a labelled task, fine-tunes a model on it, and computes scores over all seeds.
- `model_evaluation`: measures losses and nearest neighbours of models, and compares models and domains.
- `benchmarks`: scores models on standard tasks, and finds items of these tasks in the models' training text.
- `ensemble`: compares the losses of several models with the loss of their mean prediction.
- `sequence_matrices`: collects scores and losses of each model of a sequence on each domain.
- `domain_sequence`: combines the measurements of a whole sequence of domains.
- `vocabulary_stages`: measures how words are split into tokens, and adds, removes or replaces tokens of models.
- `add_head`: adds a new masked-language-model head to an encoder, or changes the initial model in other ways.
"""
