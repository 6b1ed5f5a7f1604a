"""Hands what the logger "tfring" gets to the runtime, which writes all lines in one format.

The runtime does not wait for stderr, and limits what repeats; see ops/runtime/base/log.h.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tfring.runtime import _native

_logger = logging.getLogger("tfring")

# At the end of the process lines are written for at most so long.
_FLUSH_SECONDS = 1.0
_TRACE, _ERROR = 0, 4  # the first and the last level of the runtime; Python's are ten times these


class RuntimeHandler(logging.Handler):
    """Writes with the runtime, unless the application has set up logging: then its handlers do."""

    def emit(self, record: logging.LogRecord) -> None:
        """Logs one record.

        Args:
            record: What is logged. A traceback that comes with it follows its message.
        """
        if _others_handle(self):
            return
        try:
            text = self.format(record).encode("utf-8", "backslashreplace")
            level = max(_TRACE, min(_ERROR, record.levelno // 10))
            _native.core.log(level, text, record.filename, record.lineno)
        except Exception:  # as every handler: an error in logging ends no program
            self.handleError(record)

    def flush(self) -> None:
        """Waits until all lines are written, for at most a second."""
        _native.core.flush_log(_FLUSH_SECONDS)


def set_up(settings: Mapping[str, int | str]) -> None:
    """Makes the lines of this process look as its settings say.

    Args:
        settings: What the runtime gets, by name without prefix. LOG_LEVEL counts for the logger
            "tfring", too; without it, the logger keeps a level that the program has given it.
    """
    level = _native.core.configure_log(
        {name: value for name, value in settings.items() if name.startswith("LOG_")}
    )
    if "LOG_LEVEL" in settings or _logger.level == logging.NOTSET:
        _logger.setLevel(max(1, level * 10))
    if not any(isinstance(handler, RuntimeHandler) for handler in _logger.handlers):
        _logger.addHandler(RuntimeHandler())


def _others_handle(own: logging.Handler) -> bool:
    """Whether the logger "tfring" or one above it has another handler that does something."""
    logger: logging.Logger | None = _logger
    while logger is not None:
        others = [handler for handler in logger.handlers if handler is not own]
        if any(not isinstance(handler, logging.NullHandler) for handler in others):
            return True
        logger = logger.parent if logger.propagate else None
    return False
