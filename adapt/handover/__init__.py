"""Prepares an exported model for other libraries and formats (`export.kinds`), and sends it to the Hugging Face Hub.

- `export_kind`: the base class of all kinds: packages, an early check, files, and an example for the card.
- `table`: the kinds by name; checks and writes the configured ones.
- `unchanged_folder`: kinds that read the folder as it is: transformers, sentence-transformers, TEI and vLLM.
- `task_kinds`: kinds that learn the user's task, SetFit and GLiNER, and the labelled text that they read.
- `to_onnx`: ONNX; `onnx_graph` exports the graph and compares its outputs.
- `to_gguf`: GGUF, for llama.cpp and Ollama; `gguf_file` writes its weights, and `gguf_vocabulary` its tokenizer.
- `push`: sends a folder to the Hub.
"""
