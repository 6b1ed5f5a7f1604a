"""The gathers of tfring.keras with Horovod's gradients, for `import horovod.tensorflow.keras`."""

from __future__ import annotations

from tfring.collectives.horovod_gradients import with_horovods_gradient
from tfring.keras import collectives

allgather = with_horovods_gradient(collectives.allgather)
broadcast = with_horovods_gradient(collectives.broadcast)
reducescatter = with_horovods_gradient(collectives.reducescatter)
