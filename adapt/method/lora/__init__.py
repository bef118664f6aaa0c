"""LoRA and its variants.

- `method`: the plug-in, its options, and the stage that measures the inputs of linear layers for CorDA.
- `variants`: configures peft for each variant, merges adapters, and finds intruder dimensions. For CorDA, it measures
  second moments of a layer's inputs, and finds the directions of the layer's weight that matter least for these inputs.
"""
