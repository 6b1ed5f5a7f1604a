"""Stores: keys and values that threads, processes or hosts share while they form a job."""

from tfring.job.store.errors import StoreAuthError as StoreAuthError
from tfring.job.store.errors import StoreConnectionError as StoreConnectionError
from tfring.job.store.errors import StoreError as StoreError
from tfring.job.store.errors import StoreLimitError as StoreLimitError
from tfring.job.store.errors import StoreTimeoutError as StoreTimeoutError
from tfring.job.store.errors import StoreValueError as StoreValueError
from tfring.job.store.errors import StoreWatchError as StoreWatchError
from tfring.job.store.store import PrefixStore as PrefixStore
from tfring.job.store.store import Store as Store
from tfring.job.store.store import Timeout as Timeout
from tfring.job.store.table import Change as Change
from tfring.job.store.table import Limits as Limits
from tfring.job.store.tcp.server import ServerLimits as ServerLimits
from tfring.job.store.tcp_store import TCPStore as TCPStore
from tfring.job.store.watch import Watch as Watch
