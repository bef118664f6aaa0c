"""Finds, loads, runs and saves models and tokenizers, without Ray and DeepSpeed.

- `locate`: finds a checkpoint and its files.
- `start`: the model with which a stage begins. An earlier stage may have to write this model first.
- `demo_checkpoint`: downloads a small checkpoint from the package index.
- `size`: reads the size of a model before it is loaded.
- `trainable`: decides which parameters are trained and which learning rate each parameter has.
- `architecture`: reads from a model's files the names of its parts, its longest sequence, and whether it is a decoder.
- `tokenizer`: loads a tokenizer, and checks that it belongs to the model.
- `tokenize/`: computes the same token ids as the tokenizers library, but faster.
- `load`: loads a model with or without its head, and saves it as a Hugging Face folder.
- `detector`: a generator and a discriminator of replaced tokens in one module.
- `rebuilt_model`: models with a new head or new top layers, and decoders that become encoders.
- `sentence_vectors`: reads and writes the settings with which sentence-transformers makes a vector per text.
- `model_card`: parts of the README.md of a saved model.
- `safeguards`: silences transformers, builds models one at a time, and rejects weights that are nan or infinite.
- `additions/`: adapters, masks, experts and prompts that a model has in addition to its architecture.
- `layers`: layers and their units (attention heads and neurons).
- `masked_updates`: scales the updates of parameters by masks, and holds rows of a table fixed.
- `packing/`: several documents in one sequence, without padding.
- `sparse_prediction`: losses and scores at chosen positions only.
- `linear_losses`: cross entropy and divergence without all scores in memory.
- `states`: hidden states, and one vector per text.
"""
