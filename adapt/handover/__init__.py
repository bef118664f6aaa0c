"""Prepares an exported model for other libraries and formats (`export.kinds`), and sends it to the Hugging Face Hub.

- `export_kind`: the base class of all kinds: packages, an early check, files, and an example for the card.
- `labelled_text`: the user's task, for kinds that learn it.
- `table`: the kinds by name; checks and writes the configured ones.
- `to_transformers`: transformers, for which every export is written.
- `to_sentence_transformers`: vectors of sentences.
- `to_tei`: Text Embeddings Inference, a server for vectors.
- `to_setfit`: SetFit, a classifier on the vectors.
- `to_gliner`: GLiNER, which finds entities.
- `to_onnx`: ONNX.
- `to_gguf`: GGUF, for llama.cpp and Ollama; `gguf_tensors` and `gguf_vocabulary` have its weights and its tokenizer.
- `to_vllm`: vLLM, a server for decoders.
- `push`: sends a folder to the Hub.
"""
