"""The tiny reader, a small Llama that the project trains itself and ships, and a small classifier for LLMLingua-2."""
