"""DAS (arXiv 2302.03241): units (attention heads and neurons) that matter to past domains move less."""
