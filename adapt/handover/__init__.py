"""Prepares an exported model for other libraries and formats (`export.kinds`), and sends it to the Hugging Face Hub.

- `export_kind`: the base class of all kinds of exports, and the kinds that need no further files: transformers,
  sentence-transformers, TEI and vLLM.
- `table`: finds kinds by name, checks the configured kinds, and writes their files.
- `task_kinds`: the kinds that learn the user's task (SetFit and GLiNER), and the labelled text that they read.
- `to_onnx`: ONNX; `onnx_graph` exports the graph and compares its outputs.
- `to_gguf`: GGUF with its tokenizer, for llama.cpp and Ollama; `gguf_file` writes the weights.
- `push`: sends a folder to the Hub.
"""
