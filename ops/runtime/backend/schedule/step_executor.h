#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_STEP_EXECUTOR_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_STEP_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/backend/schedule/buffer_map.h"
#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/backend/schedule/value_check.h"

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

  // From now on inputs are looked through for NaN and infinities.
  void CheckValues() { check_values_ = true; }
  // What was found since Prepare; complete when all steps have ended.
  std::vector<BadValues> TakeBadValues() { return values_.Take(); }

  // The kSend step has ended.
  void Sent(const Step& step) { LookAt(step.src); }

  // Executes a step without a peer.
  void Execute(const Step& step);

  // Takes `data`, what was received for bytes [done, done + bytes) of a kRecvReduce step or of one
  // that is narrow: whole elements, as they travel.
  void TakeReceived(const Step& step, int64_t done, const char* data, int64_t bytes);

  // Writes elements of a range from byte `done` on to `to`, as they travel where they are narrow.
  void Narrow(const Range& range, int64_t done, char* to, int64_t elements) const;

  // The memory of a range from byte `done` on, as up to `max` pieces; returns how many.
  int Collect(const Range& range, int64_t done, struct iovec* pieces, int max) const;

  // What an element has where this step has data of another rank.
  int64_t ElementBytes(const Step& step) const { return step.narrow ? 2 : element_bytes_; }

 private:
  const BufferMap& MapOf(Space space) const;
  void ApplyScaleBefore(const Collective& collective);
  // Looks through a range, if it is one of the input that is to be looked through.
  void LookAt(const Range& range);
  // Calls apply(dst, src, src2, elements) for each part of a step in which all three ranges are
  // contiguous.
  template <typename Apply>
  void ForPieces(const Step& step, Apply apply) const;
  void CombineReceived(const Step& step, int64_t done, const char* data, int64_t bytes);
  void TakeNarrow(const Step& step, int64_t done, const char* data, int64_t elements);
  void RoundIfAsked(const Step& step, char* data, int64_t bytes) const;
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
  WireKernels wire_;  // of the schedule's wire
  int64_t element_bytes_ = 1;
  bool check_values_ = false;
  ValueCheck values_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_STEP_EXECUTOR_H_
