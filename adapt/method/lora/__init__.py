"""LoRA and its variants.

- `method`: the plug-in and its options.
- `variants`: what each variant asks of peft, and what is read from singular values.
- `stage`, `moments`: measure second moments of inputs, which say where additions change least.
"""
