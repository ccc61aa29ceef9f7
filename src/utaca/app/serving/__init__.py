"""``utaca serve``: a reader behind the OpenAI protocol, for every client that speaks it.

What clients send and get is in docs/serve.md. A request passes through six files: ``protocol`` makes orders of its
body, ``worker`` has documents read (``memories``), prompts scored (``scores``) and answers decoded together with those
of others, ``answers`` makes what is sent of it, ``server`` has the routes.
"""
