"""What a mutation is: see mutations.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """`right` of a file below ops/, a whole statement or an expression, becomes `wrong`.

    `before` is the text in front of `right`, where that alone occurs more than once.
    """

    file: str
    right: str
    wrong: str
    before: str = ""


@dataclass(frozen=True)
class Test:
    """A program and its arguments, and what it prints when it finds the mistake.

    Where that is empty the program may also crash or hang.
    """

    program: str
    arguments: tuple[str, ...]
    finds: str = ""

    def but(self, finds: str, *more: str) -> Test:
        return Test(self.program, (*self.arguments, *more), finds)


@dataclass(frozen=True)
class Mutation:
    name: str
    test: Test
    edits: tuple[Edit, ...]
