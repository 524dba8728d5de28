"""The one error users see."""


class UserError(Exception):
    """A mistake in what the user gave us: the message names the file, line, setting or flag, and what was
    expected. The command line prints it as one line and leaves with exit code 2; there is no traceback."""
