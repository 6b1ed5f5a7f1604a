"""The exceptions of horovod.common.exceptions; two of them are those of tfring.elastic."""

from __future__ import annotations

from tfring.elastic import HorovodInternalError as HorovodInternalError
from tfring.elastic import HostsUpdatedInterrupt as HostsUpdatedInterrupt


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Returns the text of HorovodVersionMismatchError.

    Args:
        name: the framework.
        version: the version that was built for.
        installed_version: the installed version.
    """
    return (
        f"built for {name} {version}, but {name} {installed_version} is installed. Install tfring "
        "again beside it"
    )


class HorovodVersionMismatchError(ImportError):
    """A framework's version is not the one Horovod was built for. tfring raises ImportError."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        """Makes the exception; see get_version_mismatch_message for the arguments.

        Args:
            name: the framework.
            version: the version that was built for.
            installed_version: the installed version.
        """
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]
