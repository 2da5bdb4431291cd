"""A causal language model as both model services use it: load it, run rows of many sequences.

Nothing is re-implemented: the architectures are transformers'. What is ours stands around them:
the KV cache (cache), attention over it (attention), linear layers in canonical shapes (linear),
the check that those shapes keep their promise (numerics, remembered) and one forward over many
sequences (engine).
"""
