"""What can go wrong with a store. Every message names the store."""

from __future__ import annotations


class StoreError(RuntimeError):
    """A store could not do what was asked of it."""


class StoreTimeoutError(StoreError, TimeoutError):
    """The time was up: a key was not set, a lock was not free, or the store did not answer."""


class StoreConnectionError(StoreError, ConnectionError):
    """The store cannot be reached any more, or was closed."""


class StoreAuthError(StoreConnectionError):
    """The process at the store's address does not know the secret, or we do not."""


class StoreLimitError(StoreError, ValueError):
    """A key or a value is too long, or the store is full."""


class StoreValueError(StoreError, ValueError):
    """A value is not what the operation needs: `add` where there is no whole number."""


class StoreWatchError(StoreError):
    """A watch has ended: it was closed, or its store was."""
