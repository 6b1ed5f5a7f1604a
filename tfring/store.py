"""Stores: keys and values that threads, processes or hosts share while they form a job."""

from tfring.job.store import Change as Change
from tfring.job.store import Limits as Limits
from tfring.job.store import PrefixStore as PrefixStore
from tfring.job.store import ServerLimits as ServerLimits
from tfring.job.store import Store as Store
from tfring.job.store import StoreAuthError as StoreAuthError
from tfring.job.store import StoreConnectionError as StoreConnectionError
from tfring.job.store import StoreError as StoreError
from tfring.job.store import StoreLimitError as StoreLimitError
from tfring.job.store import StoreTimeoutError as StoreTimeoutError
from tfring.job.store import StoreValueError as StoreValueError
from tfring.job.store import StoreWatchError as StoreWatchError
from tfring.job.store import TCPStore as TCPStore
from tfring.job.store import Timeout as Timeout
from tfring.job.store import Watch as Watch
