"""What goes wrong in the elastic scripts, each accident once for all processes of a job."""

import os
import signal


def once(folder, name):
    """Whether nobody has asked for this name before, in whatever process."""
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def power_cut(folder, name):
    """Kills this process, the first time."""
    if once(folder, name):
        os.kill(os.getpid(), signal.SIGKILL)
