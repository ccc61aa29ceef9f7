"""The offline reference endpoint: a deterministic, rule-based model behind the chat completions protocol."""
