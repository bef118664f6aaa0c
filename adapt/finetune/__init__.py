"""Fine-tuning: a model learns a labelled task, by several ways, and is tested on it."""
