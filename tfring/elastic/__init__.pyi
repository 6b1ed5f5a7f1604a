"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.elastic.errors import HorovodInternalError as HorovodInternalError
from tfring.elastic.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from tfring.elastic.loop import run as run
from tfring.elastic.state import ObjectState as ObjectState
from tfring.elastic.state import State as State
from tfring.elastic.tensorflow_state import TensorFlowKerasState as TensorFlowKerasState
from tfring.elastic.tensorflow_state import TensorFlowState as TensorFlowState
