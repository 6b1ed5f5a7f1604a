"""What ranks and launchers end with where the training is not done, and no program has failed."""

from __future__ import annotations

# A rank that was asked to end, and has published a checkpoint, and a launcher whose ranks all have:
# the default of TFRING_STOPPED_EXIT_CODE.
STOPPED = 75
# A worker of an elastic job that had to leave before the training was done; kExitTryAgain of
# ops/runtime/membership/worker.h.
DISMISSED = 76
# A launcher whose ranks have failed because those of another launcher are gone.
LOST_PEER = 77
