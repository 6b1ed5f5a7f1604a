"""What a setting is, and how its text becomes a value."""

from __future__ import annotations

import enum
import functools
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off")
_NANOSECONDS = 1_000_000_000

_MOST_BYTES = 1 << 40
_YEAR = 365 * 86400  # seconds

Value = bool | int | float | str | tuple[str, ...]


class SettingError(ValueError):
    """A setting has an impossible value. The message names both, and which values are allowed."""


class Kind(enum.Enum):
    """What the text of a setting stands for."""

    FLAG = enum.auto()
    COUNT = enum.auto()
    BYTES = enum.auto()
    SECONDS = enum.auto()
    CHOICE = enum.auto()  # one of Setting.choices
    PATH = enum.auto()
    TEXT = enum.auto()
    ADDRESS = enum.auto()  # an IP address
    NAMES = enum.auto()  # a list with commas
    PORTS = enum.auto()  # the first and the last port of a range


class Reader(enum.Enum):
    """What reads a setting."""

    RUNTIME = enum.auto()  # the compiled runtime
    PYTHON = enum.auto()
    OURS = enum.auto()  # tfring sets it itself, for its own processes


@dataclass(frozen=True)
class Group:
    """Settings of one subject, in the order of the documentation."""

    title: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Option:
    """How `tfring run` spells a setting.

    Attributes:
        names: The spellings. Those of a flag set it to 1, the others take a value.
        off: The spellings that set a flag to 0.
        metavar: What stands for the value in the help.
        scale: How many units of the setting one unit of the option has.
        help: The help, where it is different from the setting's meaning.
    """

    names: tuple[str, ...]
    off: tuple[str, ...] = ()
    metavar: str | None = None
    scale: int = 1
    help: str = ""

    @property
    def attribute(self) -> str:
        """Where argparse keeps the value."""
        return self.names[0].lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        kind: What its text stands for.
        name: Its name, without the prefix TFRING_.
        meaning: What it does, in Markdown.
        default: The value that counts where it is not set; None: there is none.
        low: The smallest value.
        high: The largest value.
        choices: The values of a choice.
        also: Other spellings of choices.
        default_text: The default in words, where it depends on the job.
        horovod: Horovod's variable for the same thing.
        option: How `tfring run` spells it.
        per_rank: For the runtime's settings: whether ranks may have different values. Otherwise all
            use rank 0's. Settings of Python are each rank's own.
        reader: What reads it.
        member: The field of the runtime's Config.
        native: The runtime's C++ type of a choice, and its constants in the order of the choices.
        internal: No user should need it. Its prefix is TFRING_X_, and neither the docs nor the help
            have it.
    """

    kind: Kind
    name: str
    meaning: str
    default: Value | None = None
    low: float = 0
    high: float = math.inf
    choices: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    default_text: str = ""
    horovod: str = ""
    option: Option | None = None
    per_rank: bool = False
    reader: Reader = Reader.RUNTIME
    member: str = ""
    native: str = ""
    internal: bool = False

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"TFRING_X_{self.name}" if self.internal else f"TFRING_{self.name}"

    @property
    def allowed(self) -> str:
        """Which values it can have, for messages and help."""
        if self.kind is Kind.CHOICE:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.kind in _NUMBERS:
            return f"{_NUMBERS[self.kind]} from {_shown(self.low)} to {_shown(self.high)}"
        return _FORMS[self.kind]

    @property
    def shown_default(self) -> str:
        """The default as a user would write it; "" where there is none."""
        if self.default_text or self.default is None:
            return self.default_text
        return self.text_of(self.default)

    @property
    def plain_meaning(self) -> str:
        """The meaning without Markdown: links are commands."""
        text = re.sub(r"\[[^]]*\]\(([\w-]+)\.md[^)]*\)", r"tfring help \1", self.meaning)
        text = re.sub(r"\[[^]]*\]\(#[^)]*\)", "tfring help configuration", text)
        return text.replace("`", "")

    def parse(self, text: str, variable: str = "") -> Value:
        """Returns the value that a text stands for. Upper and lower case make no difference.

        Args:
            text: The text; for NAMES and TEXT anything.
            variable: What the message calls the setting; "": its variable.

        Raises:
            SettingError: The text is not one of the allowed values.
        """
        try:
            value = _PARSERS[self.kind](self, text if self.kind in _AS_IT_IS else text.strip())
        except ValueError:
            value = None
        if value is None:
            name = variable or self.variable
            raise SettingError(f'{name} is "{text}" and has to be {self.allowed}')
        return value

    def text_of(self, value: Value) -> str:
        """Returns the one text that stands for a value: `parse` gives the value again."""
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, bool):
            return "1" if value else "0"
        return _shown(value) if isinstance(value, int | float) else value

    def native_value(self, text: str) -> int | str:
        """Returns what the compiled runtime gets for a text: nanoseconds, numbers, indices, paths.

        Raises:
            SettingError: See parse.
        """
        value = self.parse(text)
        if self.kind is Kind.CHOICE:
            return self.choices.index(str(value))
        if self.kind is Kind.SECONDS:
            return round(float(str(value)) * _NANOSECONDS)
        return int(value) if isinstance(value, bool | int) else str(value)


def words(on: str, off: str) -> dict[str, str]:
    """Returns which choice each word of a flag stands for.

    Args:
        on: The choice for "1" and "true".
        off: The choice for "0" and "false".
    """
    return dict.fromkeys(_ON, on) | dict.fromkeys(OFF, off)


flag = functools.partial(Setting, Kind.FLAG)
count = functools.partial(Setting, Kind.COUNT)
size = functools.partial(Setting, Kind.BYTES, high=_MOST_BYTES)
seconds = functools.partial(Setting, Kind.SECONDS, high=_YEAR)
choice = functools.partial(Setting, Kind.CHOICE)
path = functools.partial(Setting, Kind.PATH)
text = functools.partial(Setting, Kind.TEXT)
address = functools.partial(Setting, Kind.ADDRESS)
names = functools.partial(Setting, Kind.NAMES)
ports = functools.partial(Setting, Kind.PORTS)


def _number(setting: Setting, number: float) -> float | None:
    return number if setting.low <= number <= setting.high else None


def _digits(text: str) -> str:
    """Returns the text; Python's numbers may have _ and digits of other alphabets."""
    if not text.isascii() or "_" in text:
        raise ValueError
    return text


def _choice(setting: Setting, text: str) -> str | None:
    word = text.lower()
    choice = setting.also.get(word, word)
    return choice if choice in setting.choices else None


def _flag(_: Setting, text: str) -> bool | None:
    word = text.lower()
    return word in _ON if word in _ON + OFF else None


def _names(_: Setting, text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def ports_of(text: str) -> range:
    """Returns the ports of a setting of that kind.

    Args:
        text: "20000-20999".

    Raises:
        ValueError: It is no range of ports.
    """
    first, _, last = text.partition("-")
    found = range(int(_digits(first)), int(_digits(last)) + 1)
    if not found or not 1 <= found[0] <= found[-1] <= 65535:
        raise ValueError(f"{text} is no range of ports")
    return found


def _ports(_: Setting, text: str) -> str:
    found = ports_of(text)
    return f"{found[0]}-{found[-1]}"


def _shown(number: float) -> str:
    whole = int(number) if math.isfinite(number) else number
    return str(whole) if whole == number else f"{number:.9f}".rstrip("0")


_PARSERS: dict[Kind, Callable[[Setting, str], Value | None]] = {
    Kind.FLAG: _flag,
    Kind.COUNT: lambda setting, text: _number(setting, int(_digits(text))),
    Kind.BYTES: lambda setting, text: _number(setting, int(_digits(text))),
    Kind.SECONDS: lambda setting, text: _number(setting, round(float(_digits(text)), 9)),
    Kind.CHOICE: _choice,
    Kind.PATH: lambda _, text: text,
    Kind.TEXT: lambda _, text: text,
    Kind.ADDRESS: lambda _, text: str(ipaddress.ip_address(text)),
    Kind.NAMES: _names,
    Kind.PORTS: _ports,
}
_AS_IT_IS = (Kind.TEXT, Kind.PATH)
_NUMBERS = {
    Kind.COUNT: "a whole number",
    Kind.BYTES: "a whole number of bytes",
    Kind.SECONDS: "a number of seconds",
}
_FORMS = {
    Kind.FLAG: "0 or 1",
    Kind.PATH: "a path",
    Kind.TEXT: "a text",
    Kind.ADDRESS: "an IP address",
    Kind.NAMES: "names with commas between them",
    Kind.PORTS: "the first and the last port of a range, 20000-20999",
}
