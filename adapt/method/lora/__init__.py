"""LoRA and its variants.

- `method`: the plug-in, its options, and the stage that measures what enters linear layers.
- `variants`: what each variant asks of peft, and what is read from singular values.
- `moments`: second moments of what enters a layer, and where additions change least by them.
"""
