"""The parts of tools/make_model.py: presets, quantisation mixes, weights, tokenizer, GGUF writer."""
