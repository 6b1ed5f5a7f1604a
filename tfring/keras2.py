"""Keras 2 (the package tf_keras): `import tfring.keras2 as hvd` has the names of tfring.keras.

Only SyncBatchNormalization and load_model are others than there: optimizers and callbacks of
tfring.keras serve both Keras. With TF_USE_LEGACY_KERAS=1, where tf.keras is Keras 2, tfring.keras
and tfring have these two from here, so it is for programs that import tf_keras itself.
"""

from tfring.runtime.public_names import KERAS2_INSTEAD, reexport

__getattr__, __dir__, __all__ = reexport("tfring.keras", instead=KERAS2_INSTEAD)
