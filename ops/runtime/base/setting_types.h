#ifndef TFRING_OPS_RUNTIME_BASE_SETTING_TYPES_H_
#define TFRING_OPS_RUNTIME_BASE_SETTING_TYPES_H_

namespace tfring {

// What carries tensors in GPU memory: NCCL where all ranks can use it, else the CPU; NCCL or an
// error; always the CPU.
enum class GpuOperations { kAuto, kNccl, kHost };

// What carries tensors in CPU memory: shared memory within a host where that is possible, and TCP;
// the same, and an error where shared memory is not possible; TCP alone; shared memory within a
// host where that is possible, and MPI.
enum class CpuOperations { kAuto, kShm, kTcp, kMpi };

// What happens when this rank's part of a reduction holds NaN or infinities: nothing; a warning; an
// error of the call.
enum class ValueAction { kIgnore, kWarn, kError };

// Whether allreduces of ranks on several hosts reduce within each host first: where that is
// expected to be faster; never; always.
enum class Hierarchy { kAuto, kNever, kAlways };

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_SETTING_TYPES_H_
