"""Kinds of stages. Each is a frozen dataclass: its fields are its settings and the stages that it reads.

- `context`: what the stages of a job are made from.
- `preflight`: what cannot work is refused before anything runs.
- `text_sources`: files, texts of tasks, duplicates.
- `prepare_text`: text as token shards.
- `document_vectors`: vectors of documents.
- `select_documents`: documents of a pool that are worth training on.
- `judge_selection`: selected documents next to random ones.
- `training_plan`: length, mixture and dimensions of a training.
- `train`: a training.
- `export_model`: the model of a training, with its losses before and after.
- `merge_stage`: models made of others.
- `finetuning`: a labelled task, a model fine-tuned on it, scores over all seeds.
- `model_evaluation`: losses, perplexity and neighbours of models, comparisons of models and domains.
- `sequence_matrices`: what each model of a sequence scores on each domain.
- `domain_sequence`: the stage of a whole sequence.
- `vocabulary_analysis`: how words are split into tokens.
- `extend_vocabulary`, `trim_vocabulary`: a model with more or fewer tokens.
- `add_head`: an encoder with a new head for masked tokens.
- `model_from_scratch`: a tokenizer and a model of random weights.
- `advice_evidence`: measurements for advice.
- `run_stages`: runs the stages of a chain.
"""
