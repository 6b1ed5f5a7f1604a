"""Prints the manifest of a job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tfring.launcher.hosts.errors import UsageError
from tfring.launcher.kubernetes.kinds import MAKERS
from tfring.launcher.kubernetes.options import Request


def manifest(request: Request, argv: Sequence[str]) -> str:
    """Returns the manifest of a job, as YAML with a comment before it that says what to do.

    Args:
        request: The job.
        argv: The words of the command line that asks for it, after `tfring`.

    Raises:
        UsageError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise UsageError('--kubernetes needs PyYAML: pip install "tfring[cluster]"') from None

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Writes what is there twice a second time, and not as a reference to the first."""

        def ignore_aliases(self, data: object) -> bool:
            del data
            return True

    objects = MAKERS[request.kind](request)
    text: str = yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=1000)
    lines = [f"tfring {shlex.join(argv)}"]
    namespace = "" if request.namespace is None else f" -n {request.namespace}"
    if request.kind != "mpijob":  # its launcher makes a secret, which reaches the workers by ssh
        lines.append(
            f"kubectl{namespace} create secret generic {request.secret} "
            '--from-literal=secret="$(openssl rand -hex 32)"'
        )
    return "".join(f"# {line}\n" for line in lines) + text
