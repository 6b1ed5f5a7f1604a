#ifndef TFRING_OPS_GPU_NCCL_PROGRAM_BUILDER_H_
#define TFRING_OPS_GPU_NCCL_PROGRAM_BUILDER_H_

#include <cstdint>
#include <vector>

#include "ops/gpu/nccl/nccl_program.h"

namespace tfring {

// Adds the copies and calls of one collective to a program whose type and factors are set. Lives
// for one program. Packed tensors lie one after another in scratch memory, each at a multiple of 16
// bytes. The gaps are reduced, too, and nobody reads them.
class ProgramBuilder {
 public:
  ProgramBuilder(const Collective& collective, const NcclAbilities& abilities,
                 NcclProgram* program);

  void CopyAll();  // for a single member
  void Allreduce();
  void Reduce();
  void Reducescatter();
  void Broadcast();
  void Allgather();
  void Gather();
  void Scatter();
  void Alltoall();
  void SendRecv();

 private:
  using Blocks = std::vector<int64_t>;  // bytes by member
  // The offsets of packed tensors in the segment of their member. All segments have equal size.
  struct Segments {
    std::vector<size_t> tensors;
    std::vector<Blocks> offsets;  // [index in tensors][member]
    int64_t begin = 0;
    int64_t bytes = 0;  // of one segment
  };

  NcclPlace ScaledInput(size_t tensor, int64_t bytes);
  NcclPlace ReserveScratch(int64_t bytes);
  Segments PackBlocks();
  bool IsPacked(size_t tensor) const;
  void Copy(std::vector<NcclCopy>* list, NcclPlace from, NcclPlace to, int64_t bytes) const;
  void ScaleOutput(size_t tensor, int64_t bytes);
  void Call(NcclCall::Kind kind, NcclPlace from, NcclPlace to, int64_t bytes, int peer = 0);
  void KeepOwnBlock(size_t tensor, int64_t from, int64_t to, int64_t bytes);
  void ReduceBlocks(size_t tensor);
  void ReduceTensor(size_t tensor, NcclCall::Kind kind);

  const Collective& collective_;
  const NcclAbilities abilities_;
  NcclProgram* const program_;
  const int64_t element_bytes_;
  const int size_;
  bool several_small_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_GPU_NCCL_PROGRAM_BUILDER_H_
