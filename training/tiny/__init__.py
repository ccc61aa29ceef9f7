"""The tiny reader, a small Llama that the project trains itself and ships."""
