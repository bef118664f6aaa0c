"""Finds, loads, runs and saves models and tokenizers, without Ray and DeepSpeed.

- `locate`: finds a checkpoint and its files.
- `start`: describes the model with which a stage begins, including a model that an earlier stage still has to write.
- `demo_checkpoint`: downloads a small checkpoint from the package index.
- `size`: reads the size of a model before it is loaded.
- `trainable`: decides which parameters are trained and which learning rate each parameter has.
- `architecture`: reads facts from a model's files: names of parts, maximum sequence length, encoder or decoder.
- `tokenizer`: loads a tokenizer, and checks that it belongs to the model.
- `tokenize/`: computes the same token ids as the tokenizers library, but faster.
- `load`: loads a model with or without its head, and saves it as a Hugging Face folder.
- `detector`: combines a generator and a discriminator of replaced tokens in one module.
- `rebuilt_model`: writes models with a new head or new top layers, and converts decoders to encoders.
- `sentence_vectors`: reads and writes the settings with which sentence-transformers makes a vector per text.
- `model_card`: writes parts of the README.md of a saved model.
- `safeguards`: silences transformers, builds models one at a time, and rejects weights that are nan or infinite.
- `additions/`: adapters, masks, experts and prompts that a model has in addition to its architecture.
- `layers`: finds a model's layers and their units (attention heads and neurons), and multiplies units by values.
- `masked_updates`: scales the updates of parameters by masks, and holds rows of a table fixed.
- `packing/`: packs several documents into one sequence, without padding.
- `sparse_prediction`: computes losses and scores at chosen positions only.
- `linear_losses`: computes cross entropy and divergence without all scores in memory at once.
- `states`: computes hidden states, and one vector per text.
"""
