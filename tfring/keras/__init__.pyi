"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring import data as data
from tfring.collectives.allgather import grouped_allgather as grouped_allgather
from tfring.collectives.allreduce import grouped_allreduce as grouped_allreduce
from tfring.collectives.compression import Compression as Compression
from tfring.collectives.objects import allgather_object as allgather_object
from tfring.collectives.objects import broadcast_object as broadcast_object
from tfring.collectives.objects import broadcast_object_fn as broadcast_object_fn
from tfring.collectives.reducescatter import grouped_reducescatter as grouped_reducescatter
from tfring.collectives.replicated import replicated as replicated
from tfring.collectives.sync import barrier as barrier
from tfring.collectives.sync import join as join
from tfring.collectives.variables import broadcast_variables as broadcast_variables
from tfring.data.sharding.batches import shard_batches as shard_batches
from tfring.data.sharding.shard import shard as shard
from tfring.keras.callbacks.checkpoints.training_state import (
    restore_checkpoint as restore_checkpoint,
)
from tfring.keras.callbacks.checkpoints.training_state import save_checkpoint as save_checkpoint
from tfring.keras.callbacks.fit_callbacks import fit_callbacks as fit_callbacks
from tfring.keras.collectives import allgather as allgather
from tfring.keras.collectives import allreduce as allreduce
from tfring.keras.collectives import broadcast as broadcast
from tfring.keras.collectives import reducescatter as reducescatter
from tfring.keras.evaluation import evaluate as evaluate
from tfring.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from tfring.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from tfring.keras.preprocessing import adapt as adapt
from tfring.keras.saving import load_model as load_model
from tfring.keras.saving import save_model as save_model
from tfring.keras.seeds import set_random_seed as set_random_seed
from tfring.keras.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from tfring.observe.timeline.session import start_timeline as start_timeline
from tfring.observe.timeline.session import stop_timeline as stop_timeline
from tfring.ops.reduce_ops import Adasum as Adasum
from tfring.ops.reduce_ops import Average as Average
from tfring.ops.reduce_ops import Max as Max
from tfring.ops.reduce_ops import Min as Min
from tfring.ops.reduce_ops import Product as Product
from tfring.ops.reduce_ops import Sum as Sum
from tfring.runtime.built import cuda_built as cuda_built
from tfring.runtime.built import mpi_built as mpi_built
from tfring.runtime.built import nccl_built as nccl_built
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
from tfring.training.comparison.assert_equal import assert_equal as assert_equal
from tfring.training.gradient_norms import GradientNorms as GradientNorms
from tfring.training.gradient_tape import DistributedGradientTape as DistributedGradientTape
from tfring.training.gradient_tape import (
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)
from tfring.training.reduction_record import mark_reduced as mark_reduced
from tfring.world import init as init
from tfring.world import is_homogeneous as is_homogeneous
from tfring.world import mpi_enabled as mpi_enabled
from tfring.world import shutdown as shutdown

from . import callbacks as callbacks
from . import elastic as elastic
