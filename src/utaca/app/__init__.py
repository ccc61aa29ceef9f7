"""What a user runs: the command ``utaca``, and the server that it starts."""
