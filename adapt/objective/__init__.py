"""What a model is asked to predict: how rows are corrupted and how the loss is taken."""
