"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.elastic.errors import HorovodInternalError as HorovodInternalError
from tfring.elastic.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from tfring.elastic.loop import run as run
from tfring.keras.elastic.callbacks import CommitStateCallback as CommitStateCallback
from tfring.keras.elastic.callbacks import UpdateBatchStateCallback as UpdateBatchStateCallback
from tfring.keras.elastic.callbacks import UpdateEpochStateCallback as UpdateEpochStateCallback
from tfring.keras.elastic.fitting import fit as fit
from tfring.keras.elastic.state import KerasState as KerasState
