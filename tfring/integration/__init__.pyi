"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.job.bootstrap.mpi_exchange import threads_supported as threads_supported
from tfring.job.handshake.listener import bind as bind
from tfring.job.security.errors import IntegrityError as IntegrityError
from tfring.job.security.mac import Channel as Channel
from tfring.job.security.secret import fresh_secret as fresh_secret
from tfring.launch.agents.addresses import open_rendezvous as open_rendezvous
from tfring.launch.agents.host import LOST_CODE as LOST_CODE
from tfring.launch.agents.protocol import agent_command as agent_command
from tfring.launch.elastic.coordinator import Service as Service
from tfring.launch.elastic.options import ELASTIC_SECONDS as ELASTIC_SECONDS
from tfring.launch.elastic.options import NO_LIMIT as NO_LIMIT
from tfring.launch.elastic.options import ElasticOptions as ElasticOptions
from tfring.launch.elastic.orders import NOT_STARTED as NOT_STARTED
from tfring.launch.elastic.orders import EndJob as EndJob
from tfring.launch.elastic.orders import Generation as Generation
from tfring.launch.elastic.orders import KillWorker as KillWorker
from tfring.launch.elastic.orders import Note as Note
from tfring.launch.elastic.orders import Order as Order
from tfring.launch.elastic.orders import Orders as Orders
from tfring.launch.elastic.orders import Restart as Restart
from tfring.launch.elastic.orders import StartWorker as StartWorker
from tfring.launch.engine_jobs import Output as Output
from tfring.launch.engine_jobs import run_elastic_job as run_elastic_job
from tfring.launch.engine_jobs import run_job as run_job
from tfring.launch.engine_links import Links as Links
from tfring.launch.engine_links import link_to as link_to
from tfring.launch.engines import Where as Where
from tfring.launch.engines import gpus_of_node as gpus_of_node
from tfring.launch.engines import interfaces as interfaces
from tfring.launch.engines import is_consequence as is_consequence
from tfring.launch.engines import job_variables as job_variables
from tfring.launch.engines import line as line
from tfring.launch.engines import places as places
from tfring.launch.engines import rank_variables as rank_variables
from tfring.launch.engines import with_own_first as with_own_first
from tfring.launch.function import FunctionServer as FunctionServer
from tfring.launch.function import pickled_call as pickled_call
from tfring.launch.hosts.placement import Slot as Slot
from tfring.launch.options.environment import sent_variables as sent_variables
from tfring.launch.options.job_options import JobOptions as JobOptions
from tfring.ops.arguments import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
from tfring.ops.early import register_where_loaded as register_where_loaded
from tfring.runtime.exceptions import described as described
from tfring.runtime.horovod_path import SHIM_FOLDER as SHIM_FOLDER
from tfring.runtime.horovod_path import search_path as search_path
from tfring.runtime.horovod_path import use_shim as use_shim
from tfring.runtime.horovod_path import uses_shim as uses_shim
from tfring.runtime.program_warnings import warn_program as warn_program
from tfring.runtime.public_names import lazy_names as lazy_names
from tfring.runtime.public_names import no_name as no_name
from tfring.runtime.public_names import reexport as reexport
from tfring.runtime.public_names import tf_keras_is_keras2 as tf_keras_is_keras2
from tfring.runtime.topology import waiting as waiting
from tfring.training.accumulation import (
    LocalGradientAggregationHelper as LocalGradientAggregationHelper,
)
from tfring.world import end_of_program as end_of_program
from tfring.world import leave as leave
