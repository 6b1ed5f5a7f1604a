"""The exceptions of horovod.common.exceptions. tfring raises tf.errors instead of the first two."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed, in Horovod's elastic training, which tfring does not have yet.

    Without elastic training Horovod's TensorFlow ops raise tf.errors, as tfring's do.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts came or went, in Horovod's elastic training, which tfring does not have yet."""

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
