"""Models and tokenizers: find them, load them, predict with them, save them. No Ray and no DeepSpeed in here.

- `locate`: where a checkpoint lies on disk, and its files.
- `mistaken`: what is given in place of a model, by its name.
- `demo`: the checkpoint that comes with the package index.
- `start`: the model that a stage begins with, there already or not.
- `size`: how large a model is, before it is loaded.
- `limits`: how long a sequence it takes.
- `direction`: whether it looks to both sides.
- `instruct`: whether it was taught to follow instructions.
- `quiet`: keeps transformers from the terminal.
- `tokenizer`: loads a tokenizer.
- `match`: whether it is the model's own.
- `alike`: whether two of them are the same.
- `literal`: tokenizers for which `[MASK]` in a text is text.
- `tokenize/`: the same ids, faster.
- `packing/`: documents one after another in a sequence, kept apart.
- `outputs/`: what a model says of packed text: losses, scores, states and features.
- `layers/`: the parts of a transformer's layers, by architecture.
- `additions/`: what a model carries that cannot be merged into it.
- `apart`: makes a model ready for packed sequences.
- `alone`: one thread at a time builds models; `load`: loads a model with its head.
- `base`: loads it without.
- `finite`: whether all its weights are numbers.
- `export`: saves it.
- `card`: describes it.
"""
