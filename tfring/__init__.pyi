"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.collectives.allgather import allgather as allgather
from tfring.collectives.allgather import grouped_allgather as grouped_allgather
from tfring.collectives.allreduce import allreduce as allreduce
from tfring.collectives.allreduce import grouped_allreduce as grouped_allreduce
from tfring.collectives.alltoall import alltoall as alltoall
from tfring.collectives.broadcast import broadcast as broadcast
from tfring.collectives.compression import Compression as Compression
from tfring.collectives.compression import Compressor as Compressor
from tfring.collectives.objects import allgather_object as allgather_object
from tfring.collectives.objects import broadcast_object as broadcast_object
from tfring.collectives.objects import broadcast_object_fn as broadcast_object_fn
from tfring.collectives.reducescatter import grouped_reducescatter as grouped_reducescatter
from tfring.collectives.reducescatter import reducescatter as reducescatter
from tfring.collectives.replicated import replicated as replicated
from tfring.collectives.rooted import gather as gather
from tfring.collectives.rooted import reduce as reduce
from tfring.collectives.rooted import scatter as scatter
from tfring.collectives.send_recv import recv as recv
from tfring.collectives.send_recv import send as send
from tfring.collectives.step import step as step
from tfring.collectives.sync import barrier as barrier
from tfring.collectives.sync import join as join
from tfring.collectives.variables import broadcast_ as broadcast_
from tfring.collectives.variables import broadcast_variables as broadcast_variables
from tfring.data.sharding.batches import shard_batches as shard_batches
from tfring.data.sharding.shard import shard as shard
from tfring.horovod.build_flags import ccl_built as ccl_built
from tfring.horovod.build_flags import cuda_built as cuda_built
from tfring.horovod.build_flags import ddl_built as ddl_built
from tfring.horovod.build_flags import gloo_built as gloo_built
from tfring.horovod.build_flags import gloo_enabled as gloo_enabled
from tfring.horovod.build_flags import mpi_built as mpi_built
from tfring.horovod.build_flags import mpi_threads_supported as mpi_threads_supported
from tfring.horovod.build_flags import nccl_built as nccl_built
from tfring.horovod.build_flags import rocm_built as rocm_built
from tfring.horovod.helpers import check_num_rank_power_of_2 as check_num_rank_power_of_2
from tfring.horovod.helpers import gpu_available as gpu_available
from tfring.horovod.helpers import split_list as split_list
from tfring.horovod.tf1 import BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook
from tfring.horovod.tf1 import broadcast_global_variables as broadcast_global_variables
from tfring.horovod.util import check_extension as check_extension
from tfring.keras import callbacks as callbacks
from tfring.keras.callbacks.fit_callbacks import fit_callbacks as fit_callbacks
from tfring.keras.evaluation import evaluate as evaluate
from tfring.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from tfring.keras.preprocessing import adapt as adapt
from tfring.keras.seeds import set_random_seed as set_random_seed
from tfring.keras.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from tfring.launch.function import run as run
from tfring.observe.timeline.session import start_timeline as start_timeline
from tfring.observe.timeline.session import stop_timeline as stop_timeline
from tfring.ops.arguments import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
from tfring.ops.library import load_ops as load_ops
from tfring.ops.reduce_ops import Adasum as Adasum
from tfring.ops.reduce_ops import Average as Average
from tfring.ops.reduce_ops import Max as Max
from tfring.ops.reduce_ops import Min as Min
from tfring.ops.reduce_ops import Product as Product
from tfring.ops.reduce_ops import Sum as Sum
from tfring.ops.topology_ops import cross_rank_op as cross_rank_op
from tfring.ops.topology_ops import cross_size_op as cross_size_op
from tfring.ops.topology_ops import local_rank_op as local_rank_op
from tfring.ops.topology_ops import local_size_op as local_size_op
from tfring.ops.topology_ops import process_set_included_op as process_set_included_op
from tfring.ops.topology_ops import rank_op as rank_op
from tfring.ops.topology_ops import size_op as size_op
from tfring.runtime.process_sets import ProcessSet as ProcessSet
from tfring.runtime.process_sets import add_process_set as add_process_set
from tfring.runtime.process_sets import global_process_set as global_process_set
from tfring.runtime.process_sets import remove_process_set as remove_process_set
from tfring.runtime.topology import cross_rank as cross_rank
from tfring.runtime.topology import cross_size as cross_size
from tfring.runtime.topology import is_initialized as is_initialized
from tfring.runtime.topology import local_rank as local_rank
from tfring.runtime.topology import local_size as local_size
from tfring.runtime.topology import rank as rank
from tfring.runtime.topology import size as size
from tfring.training.accumulation import (
    LocalGradientAggregationHelper as LocalGradientAggregationHelper,
)
from tfring.training.comparison.assert_equal import assert_equal as assert_equal
from tfring.training.gradient_norms import GradientNorms as GradientNorms
from tfring.training.gradient_tape import DistributedGradientTape as DistributedGradientTape
from tfring.training.gradient_tape import (
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)
from tfring.training.reduction_record import reduced as reduced
from tfring.version import __version__ as __version__
from tfring.world import init as init
from tfring.world import is_homogeneous as is_homogeneous
from tfring.world import mpi_enabled as mpi_enabled
from tfring.world import shutdown as shutdown

from . import data as data
from . import elastic as elastic
