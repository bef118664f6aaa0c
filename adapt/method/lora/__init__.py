"""LoRA and its kin: `kinds` is what each asks of peft, `spectra` what singular values say, `method` trains them."""
