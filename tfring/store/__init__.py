"""Stores: keys and values that threads, processes or hosts share while they form a job."""

from tfring.store.errors import StoreAuthError as StoreAuthError
from tfring.store.errors import StoreConnectionError as StoreConnectionError
from tfring.store.errors import StoreError as StoreError
from tfring.store.errors import StoreLimitError as StoreLimitError
from tfring.store.errors import StoreTimeoutError as StoreTimeoutError
from tfring.store.errors import StoreValueError as StoreValueError
from tfring.store.errors import StoreWatchError as StoreWatchError
from tfring.store.hash_store import HashStore as HashStore
from tfring.store.prefix_store import PrefixStore as PrefixStore
from tfring.store.store import Store as Store
from tfring.store.store import Timeout as Timeout
from tfring.store.table import Change as Change
from tfring.store.table import Limits as Limits
from tfring.store.tcp.server import ServerLimits as ServerLimits
from tfring.store.tcp_store import TCPStore as TCPStore
from tfring.store.watch import Watch as Watch
