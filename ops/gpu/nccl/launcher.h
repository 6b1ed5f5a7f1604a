#ifndef TFRING_OPS_GPU_NCCL_LAUNCHER_H_
#define TFRING_OPS_GPU_NCCL_LAUNCHER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/gpu/cuda/device.h"
#include "ops/gpu/nccl/communicator.h"
#include "ops/gpu/nccl/nccl_program.h"
#include "ops/gpu/pack/pack_kernels.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Enqueues programs on the one stream that carries all collectives of this rank. Because it is one
// stream, consecutive collectives may use the same scratch memory. For the launch thread.
class NcclLauncher {
 public:
  // `images` as in PackKernels.
  static Result<std::unique_ptr<NcclLauncher>> Make(std::shared_ptr<CudaDevice> device,
                                                    const std::vector<PackImage>& images);

  CudaDevice& device() const { return *device_; }
  CuStream stream() const { return stream_; }
  NcclAbilities abilities() const { return {pack_.status().ok()}; }

  // Launches a whole collective: waits for the framework's streams, runs the program, and gives
  // early calls the event after which their results are there. Does not wait for the device. After
  // an error, part of it may be on the stream. `communicator` may be null if there are no NCCL
  // calls.
  Status Launch(const Collective& collective, const NcclProgram& program,
                NcclCommunicator* communicator);

  // Returns the device memory of launched collectives, besides their buffers.
  std::shared_ptr<void> scratch() const { return scratch_; }

 private:
  NcclLauncher(std::shared_ptr<CudaDevice> device, CuStream stream,
               const std::vector<PackImage>& images);
  Status ReserveScratch(int64_t bytes);
  Status Copy(const std::vector<NcclCopy>& copies, DataType dtype, const Scale& scale,
              const PlaceResolver& at);
  Status SetResults(const Collective& collective);

  const std::shared_ptr<CudaDevice> device_;
  const CuStream stream_;
  PackKernels pack_;
  std::shared_ptr<void> scratch_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_LAUNCHER_H_
