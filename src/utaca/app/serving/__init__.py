"""``utaca serve``: a reader behind the OpenAI protocol, for every client of this protocol.

docs/serve.md describes requests and responses. A request passes through six files: ``server`` has the routes,
``protocol`` parses the request's body into orders, ``worker`` reads documents (``memories``), scores prompts
(``scores``) and decodes the answers of all requests together, ``replies`` builds the response.
"""
