#ifndef TFRING_OPS_XLA_HANDLERS_H_
#define TFRING_OPS_XLA_HANDLERS_H_

namespace tfring {

// Give XLA the functions for programs on CPUs and on NVIDIA GPUs. False if XLA does not take them.
bool RegisterCpuHandlers();
bool RegisterDeviceHandlers();

}  // namespace tfring

#endif  // TFRING_OPS_XLA_HANDLERS_H_
