"""The exceptions of horovod.common.exceptions; the first two are those of tfring.elastic."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A program raises it to let `elastic.run` go back to the last commit.

    tfring itself raises tf.errors where a collective fails; `elastic.run` handles these, too.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks are about to come or go; `commit` raises it, and `elastic.run` handles it."""

    def __init__(self, skip_sync: bool = False) -> None:
        """Makes the exception.

        Args:
            skip_sync: no rank has to be given the state of others.
        """
        super().__init__()
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Returns what HorovodVersionMismatchError says.

    Args:
        name: the framework.
        version: the version that was built for.
        installed_version: the version that is there.
    """
    return (
        f"built for {name} {version}, and {name} {installed_version} is installed: install tfring "
        "again beside it"
    )


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than Horovod was built for. tfring raises ImportError."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        """Makes the exception; the arguments are those of get_version_mismatch_message.

        Args:
            name: the framework.
            version: the version that was built for.
            installed_version: the version that is there.
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
