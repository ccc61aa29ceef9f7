"""Training of the adapter of SmolLM2-135M-Instruct."""
