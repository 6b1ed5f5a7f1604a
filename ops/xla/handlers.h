#ifndef TFRING_OPS_XLA_HANDLERS_H_
#define TFRING_OPS_XLA_HANDLERS_H_

namespace tfring {

// Register the functions for programs on CPUs and on NVIDIA GPUs. False if XLA refuses them.
bool RegisterCpuHandlers();
bool RegisterDeviceHandlers();

}  // namespace tfring

#endif  // TFRING_OPS_XLA_HANDLERS_H_
