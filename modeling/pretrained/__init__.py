"""Memory around language models of transformers: how they are read, and which can be."""
