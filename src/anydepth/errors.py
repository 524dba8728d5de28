"""The errors users see."""


class UserError(Exception):
    """A mistake in what the user gave us: the message names the file, line, setting or flag, and what was
    expected. The command line prints it as one line and leaves with exit code 2; there is no traceback."""


class TextError(UserError):
    """A mistake in one of many texts, known by its number; who knows what file they come from says so (`placed`)."""

    def __init__(self, number: int, problem: str, side: str = "") -> None:
        """`side` is source or target, where there are both; texts are counted from 1."""
        super().__init__(f"{side} line {number}: {problem}".lstrip())
        self.number, self.problem, self.side = number, problem, side

    def placed(self, place: str) -> UserError:
        return UserError(f"{place}: {self.side and f'{self.side}: '}{self.problem}")
