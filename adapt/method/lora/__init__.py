"""LoRA and its variants.

- `method`: the plug-in, its options, and the stage that measures the inputs of linear layers for CorDA.
- `variants`: configures peft for each variant, merges adapters, finds intruder dimensions, and measures second moments of
  a layer's inputs, by which CorDA chooses the directions to train.
"""
