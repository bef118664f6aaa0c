"""Models and tokenizers: find, load, run and save them. No Ray and no DeepSpeed in here.

- `locate`: finds a checkpoint and its files.
- `start`: the model that a stage begins with, on disk already or not.
- `demo_checkpoint`: the small checkpoint that comes from the package index.
- `size`: how large a model is, before it is loaded.
- `trainable`: which parameters are trained, and at which share of the learning rate.
- `architecture`: parts of layers, longest sequence, encoder or decoder, chat template.
- `tokenizer`: loads a tokenizer, and checks that it belongs to the model.
- `tokenize/`: the same ids as the library, faster.
- `load`: loads a model with or without its head.
- `save_model`: saves a model.
- `model_card`: parts of the README.md of a saved model.
- `safeguards`: keeps transformers silent and to one thread at a time, and refuses weights that are not finite.
- `additions/`: what a model has in addition to its architecture.
- `layers`: layers and their units.
- `masked_updates`: parameters that are trained in part.
- `packing/`: several documents in one sequence, without padding.
- `sparse_prediction`: losses and scores at chosen positions only.
- `linear_losses`: cross entropy and divergence without all scores in memory.
- `states`: hidden states, and one vector for each text.
"""
