"""For all tests, those of one process and the parallel ones."""

from __future__ import annotations

import signal

# Where SIGINT is ignored, as in jobs that a shell started in the background, so it would be in all
# that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
