"""``utaca serve``: a reader behind the OpenAI protocol, for every client that speaks it.

What a user types, and what comes back::

    $ utaca serve --reader qwen25_coder_1_5b --port 8000
    qwen25_coder_1_5b answers at http://127.0.0.1:8000/v1, with a page at http://127.0.0.1:8000; Ctrl+C ends it.

    $ curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{
        "model": "qwen25_coder_1_5b",
        "messages": [{"role": "system", "content": "...a long report..."},
                     {"role": "user", "content": "Who chaired the meeting?"}]}'
    {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": "Ada Holm."},
     "finish_reason": "stop", "utaca": {"mean_selected_tokens": 73.1, "attended_keys": 640.2, "rollbacks": 3}}],
     "usage": {"prompt_tokens": 18231, "prompt_tokens_details": {"cached_tokens": 0}, ...}}

The second question about the report does not read it again: ``cached_tokens`` is then 18204. A request that cannot be
answered gets one sentence, and the server goes on::

    {"error": {"message": "messages.0.role: Input should be 'system', 'developer', 'user' or 'assistant'", ...}}

A request passes through five files: ``protocol`` makes orders of its body, ``worker`` has the documents read
(``memories``) and the answers decoded together with those of others, ``answers`` makes what is sent of it, ``server``
has the routes.
"""
