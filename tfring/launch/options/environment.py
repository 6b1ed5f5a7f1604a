"""Which variables ranks get: of their own, and on other hosts of the launcher's environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tfring.launch.agents.shells import RemoteShell
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot, address_of
from tfring.launch.options.job_options import JobOptions

# What programs, libraries and training depend on, and what holds neither keys to other services nor
# anything that is different on every host.
_SENT = re.compile(
    r"PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_(PREFIX|DEFAULT_ENV)|PYTHON\w*|LANG|LC_\w+|TZ|"
    r"(TFRING|HOROVOD|TF|KERAS|XLA|NCCL|OMP|KMP|MKL|OPENBLAS|MALLOC)_\w+|"
    r"CUDA_(HOME|PATH|DEVICE_ORDER|LAUNCH_BLOCKING|CACHE_\w+)"
)
# Of those, what describes this host or holds a secret.
_KEPT = re.compile(
    r"TF_CONFIG|TF_(VAR|CLI)_\w+|"  # the second is Terraform's
    r"TFRING_(SECRET|SECRET_FILE|BIND_ADDR|ADVERTISE_ADDR|X_FUNCTION_\w+)"
)
# Names of variables that hold secrets of this or another service.
_SECRET = re.compile(
    r"SECRET(?!_FILE)|(?<!MAX_)(?<!NUM_)TOKEN(?!IZER|_FILE)|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|"
    r"API_?KEY|ACCESS_?KEY|AUTH(?!OR)|COOKIE|WEBHOOK|JWT|CONNECTION_STRING|DSN$|"
    r"(^|_)(KEY|PAT|PASS|\w*PWD)$",
    re.IGNORECASE,
)
# PWD and OLDPWD are folders of the shell.
_FOLDERS = ("PWD", "OLDPWD")
# An address with a user and a password, as in DATABASE_URL.
_PASSWORD_IN_URL = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


def sent_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that ranks on other hosts get without being asked for."""
    return {
        name: value
        for name, value in environ.items()
        if _SENT.fullmatch(name) and not _KEPT.fullmatch(name) and not is_secret(name, value)
    }


def chosen_variable(text: str) -> tuple[str, str]:
    """Returns the variable that ``-x NAME`` or ``-x NAME=VALUE`` asks for, with its value.

    Without a value it is this process's. UsageError: it has none here, or another form.
    """
    name, given, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"{text} is neither NAME nor NAME=VALUE.")
    if not given and name not in os.environ:
        raise UsageError(f"{name} is not set here. -x {name}=VALUE sets it.")
    return name, value if given else os.environ[name]


def place_variables(options: JobOptions, slot: Slot) -> dict[str, str]:
    """Returns the variables by which a rank knows its place in the job."""
    return {**host_variables(options, slot.host), **slot.variables("TFRING_X_", options.size)}


def host_variables(options: JobOptions, host: str) -> dict[str, str]:
    """Returns what ranks call their host: as the launcher does, where it reaches hosts by name."""
    if not isinstance(options.shell, RemoteShell) or options.node is not None:
        return {}
    return {"TFRING_X_HOST_NAME": address_of(host)}


def job_variables(
    options: JobOptions, environ: Mapping[str, str], *, remote: bool
) -> dict[str, str]:
    """Returns the variables that are the same for all ranks of a host."""
    sent = sent_variables(environ) if options.sent is None else options.sent
    values = {
        **(sent if remote else {}),
        "PYTHONUNBUFFERED": environ.get("PYTHONUNBUFFERED", "1"),
        **options.environment,
        # Of a rank or a worker that starts this job.
        "TFRING_X_PARENT": "",
        "TFRING_X_ELASTIC_WORKER": "",
        **({"TFRING_SECRET": options.secret} if isinstance(options.shell, RemoteShell) else {}),
        "TFRING_JOB_ID": options.job_id,
        "TFRING_START_TIMEOUT": f"{options.start_timeout:g}",
    }
    if options.interface:
        values["TFRING_INTERFACE"] = options.interface
    return values


def is_secret(name: str, value: str = "") -> bool:
    """Tells whether a variable's name or value says that it holds a secret.

    Such a variable goes to other hosts only if `-x` names it, and nobody sees its value.
    """
    named = name not in _FOLDERS and _SECRET.search(name) is not None
    return named or _PASSWORD_IN_URL.search(value) is not None


def shown_value(name: str, value: str) -> str:
    """Returns the value of a variable for people to see: that of a secret is masked."""
    return "********" if value and is_secret(name, value) else value
