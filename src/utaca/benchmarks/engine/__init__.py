"""Speed and memory of the engine, each figure beside its bar and beside the least that the machine allows."""
