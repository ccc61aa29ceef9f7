"""The one exception a user may see: a sentence that names the fault and its mend."""


class UserError(Exception):
    """A mistake in what the user supplied (config, file, model, endpoint).

    The message is one clear sentence naming the file, key or endpoint and the mend. Entry points
    print it without a traceback and exit with status 1.
    """
