"""Which variables ranks on other hosts get from the launcher's environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tfring.launcher.placement import UsageError

# What programs, libraries and training depend on, and what holds neither keys to other services nor
# anything that is different on every host.
_SENT = re.compile(
    r"PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_(PREFIX|DEFAULT_ENV)|PYTHON\w*|LANG|LC_\w+|TZ|"
    r"(TFRING|HOROVOD|TF|KERAS|XLA|NCCL|OMP|KMP|MKL|OPENBLAS|MALLOC)_\w+|"
    r"CUDA_(HOME|PATH|DEVICE_ORDER|LAUNCH_BLOCKING|CACHE_\w+)"
)
# Of those, what describes this host or holds a secret.
_KEPT = re.compile(r"TF_CONFIG|TFRING_(SECRET|SECRET_FILE|BIND_ADDR|ADVERTISE_ADDR|FUNCTION_\w+)")


def sent_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that ranks on other hosts get without being asked for.

    Args:
        environ: The launcher's environment.
    """
    return {
        name: value
        for name, value in environ.items()
        if _SENT.fullmatch(name) and not _KEPT.fullmatch(name)
    }


def chosen_variables(asked: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that ``-x NAME`` and ``-x NAME=VALUE`` ask for.

    Args:
        asked: The arguments of -x.
        environ: The launcher's environment, for those without a value.

    Raises:
        UsageError: One has no value here.
    """
    values = {}
    for text in asked:
        name, given, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"-x {text}: it has to be NAME or NAME=VALUE")
        if not given and name not in environ:
            raise UsageError(f"-x {name}: there is no such variable here; -x {name}=VALUE sets one")
        values[name] = value if given else environ[name]
    return values
