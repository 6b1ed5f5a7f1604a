"""What a rank prints of an exception that ends it, where `tfring run` does not do it for all ranks.

One line says what has happened and where, and frames of TensorFlow, Keras and tfring are folded. Of
an error that only follows from that of another rank this line is all.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

from tfring.runtime import _native
from tfring.runtime.texts.errors import read_error

# Set by the agents of `tfring run` for all that they start.
_AGENT = "TFRING_X_AGENT"


def watch(how: str) -> None:
    """Begins to do so, unless the program has a hook for uncaught exceptions.

    Args:
        how: TFRING_TRACEBACK.
    """
    if how != "full" and _AGENT not in os.environ and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    found = read_error(text)
    if found is None or not _native.core.is_initialized() or _native.core.size() == 1:
        sys.__excepthook__(kind, error, trace)
        return
    who = f"Rank {_native.core.rank()}"
    if issubclass(kind, KeyboardInterrupt):
        lines = [f"tfring: {who} was interrupted in {found.place or 'a library'}."]
    elif found.follows:
        lines = [f"tfring: {who} was stopped in {found.place or 'a library'}: {found.text}"]
    else:
        lines = [f"tfring: {found.sentence(who)}"]
        lines += [f"        {line}" for line in found.frames]
        lines.append("        TFRING_TRACEBACK=full shows all frames.")
    print("\n".join(lines), file=sys.stderr, flush=True)
