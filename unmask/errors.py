"""The one exception that means: the user can mend this, and the message says how."""


class UserError(ValueError):
    """Bad input. The command line prints it as one line, `unmask: ...`, and exits with 2."""
