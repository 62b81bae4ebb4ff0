"""Errors that are the caller's to fix."""


class InputError(ValueError):
    """Wrong input or wrong use.

    The message is one line that names the file, row or setting and says what to
    do. The command line prints it and leaves with exit code 2.
    """


class LostProcessError(Exception):
    """Another process of the team is gone."""


class OtherProcessError(Exception):
    """Another process of the team has failed, and says why; `code` is the exit code of all."""

    def __init__(self, code: int) -> None:
        super().__init__("another process failed")
        self.code = code


class LostRunError(Exception):
    """Another process of the run is gone; the text says how to go on."""


class RunPausedError(Exception):
    """Ctrl-C, but nothing is lost; the text says how to go on.

    No `KeyboardInterrupt`: typer takes those for its own, and the text would be lost.
    """


def one_line(error: BaseException, most: int | None = None) -> str:
    """Return the text of an error as one line of at most `most` characters."""
    return " ".join(str(error).split())[:most] or type(error).__name__
