"""Names of Horovod's that this version does not have: a script hears that, not just "no attribute".

They are attributes that do not exist, so `hasattr` says no, and a script can ask before it calls.
"""

from __future__ import annotations

_NOT_YET = frozenset(
    {
        "data",
        "elastic",
        "start_timeline",
        "stop_timeline",
    }
)

_INSTEAD = {
    "check_extension": "`tfring doctor` says what was built",
    "PartialDistributedOptimizer": "it is in tfring.keras",
    "load_model": "it is in tfring.keras",
}


def missing_attribute(module: str, name: str) -> AttributeError:
    """Returns the error for a name that `module` does not have."""
    text = f"module {module!r} has no attribute {name!r}"
    if name in _NOT_YET:
        text += ": it is not there yet in this version of tfring"
    elif name in _INSTEAD:
        text += f": {_INSTEAD[name]}"
    return AttributeError(text, name=name)
