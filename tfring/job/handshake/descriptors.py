"""The number of descriptors that this process may have open."""

from __future__ import annotations

import contextlib
import math
import resource

# Enough for every rank of a large job; some programs close all that they might have open.
_USUAL = 65536


def raise_descriptor_limit(needed: int = 0) -> float:
    """Raises the soft limit as far as the hard one allows, up to 65536 or what is needed.

    Returns the soft limit from now on; infinity if there is none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(needed, _USUAL)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit
