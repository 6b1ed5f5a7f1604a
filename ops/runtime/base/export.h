#ifndef TFRING_OPS_RUNTIME_BASE_EXPORT_H_
#define TFRING_OPS_RUNTIME_BASE_EXPORT_H_

// Marks what the TensorFlow glue, the Python binding and libtfring_cuda.so may call in
// libtfring_runtime.so; everything else is hidden.
#define TFRING_EXPORT __attribute__((visibility("default")))

#endif  // TFRING_OPS_RUNTIME_BASE_EXPORT_H_
