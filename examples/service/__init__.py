"""An inference service: HTTP in, tokenizer, transformer with a KV cache, batched decoding, text out.

The weights are random but always the same ones, so nothing is downloaded and every answer can be repeated.
"""
