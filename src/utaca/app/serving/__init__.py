"""``utaca serve``: a reader behind the OpenAI protocol, for every client that speaks it.

What clients send and get is in docs/serve.md. A request passes through six files: ``server`` has the
routes, ``protocol`` turns the request's body into orders, ``worker`` has documents read (``memories``), prompts scored
(``scores``) and the answers of all requests decoded together, ``answers`` makes the response.
"""
