"""Errors that say what failed and what to do about it."""

# Set to anything, it has the command line print where an error came from.
TRACEBACK_VARIABLE = "INGERO_TRACEBACK"


class IngeroError(Exception):
    """Base of every error a user may see.

    `str(error)` says what failed, with its value; `hint` says what to do, as a command where there is one.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
