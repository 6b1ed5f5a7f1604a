"""The number of descriptors that this process may have open."""

from __future__ import annotations

import contextlib
import resource

# Enough for every rank of a large job; some programs close all that they might have open.
_WANTED = 65536


def raise_descriptor_limit() -> int:
    """Raises the soft limit as far as the hard one allows, up to 65536.

    Returns:
        The soft limit that holds now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
