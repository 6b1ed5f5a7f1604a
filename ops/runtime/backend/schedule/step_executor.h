#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_STEP_EXECUTOR_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_STEP_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/backend/schedule/buffer_map.h"
#include "ops/runtime/backend/schedule/schedule.h"

namespace tfring {

// Does those parts of a schedule that touch memory: finds the tensors behind ranges, copies and
// reduces. ScheduleRunner decides about order and peers. Used by one thread. Prepare starts a new
// collective, whose buffers must stay valid until its last step; scratch memory is kept from one
// collective to the next.
class StepExecutor {
 public:
  // `reduction` has no kernels where the schedule reduces nothing. Where the inputs are scaled
  // before the reduction, this does it: the scaled output, or a scaled copy, becomes the input.
  void Prepare(const Collective& collective, const Schedule& schedule, const Reduction& reduction);

  // Executes a step without a peer.
  void Execute(const Step& step);

  // Takes `data`, what was received for bytes [done, done + bytes) of a kRecvReduce step: whole
  // elements.
  void TakeReceived(const Step& step, int64_t done, const char* data, int64_t bytes);

  // The memory of a range from byte `done` on, as up to `max` pieces; returns how many.
  int Collect(const Range& range, int64_t done, struct iovec* pieces, int max) const;

  int64_t element_bytes() const { return element_bytes_; }
  // Bytes that it keeps from one collective to the next.
  int64_t memory() const {
    return static_cast<int64_t>(scratch_memory_.capacity() + scaled_memory_.capacity());
  }

 private:
  const BufferMap& MapOf(Space space) const;
  void ApplyScaleBefore(const Collective& collective);
  // Calls apply(dst, src, src2, elements) for each part of a step in which all three ranges are
  // contiguous.
  template <typename Apply>
  void ForPieces(const Step& step, Apply apply) const;
  void Combine(const Step& step);
  void AddDots(const Step& step);
  void CombineByDots(const Step& step);
  void Copy(const Step& step);
  Scale ScaleOf(const Step& step) const;

  BufferMap input_;
  BufferMap output_;
  BufferMap scratch_;
  std::vector<char> scratch_memory_;
  std::vector<char> scaled_memory_;  // the input times the scale before
  Reduction reduction_;
  int64_t element_bytes_ = 1;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_STEP_EXECUTOR_H_
