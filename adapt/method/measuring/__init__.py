"""What stages that measure a model have in common: `rows` of a text and the model on a device, `sums` over rows."""
