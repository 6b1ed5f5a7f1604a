#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_VALUE_CHECK_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_VALUE_CHECK_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/backend/schedule/schedule.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// Looks for NaN and infinities in this rank's own inputs of a collective that adds floating-point
// numbers: in the result they are on all ranks, and nobody can tell where they came from.
//
// Reading memory is what it costs, so it looks at each part of the input when a step reads that
// part anyway: then the step, or the check, finds it in the cache. Where steps read some parts
// several times (short messages), it looks at everything first. Used by one thread.
class ValueCheck {
 public:
  // So little at a time that it is still in the first-level cache when it is used next.
  static constexpr int64_t kBlockBytes = 16 << 10;

  // A new collective begins; its inputs must not change until they have been looked at. `reduction`
  // is empty where nothing is to be found. `given`: each part of the inputs will be given to Look;
  // else all are looked at now.
  void Start(const Collective& collective, const Reduction& reduction, bool given);

  // Whether parts of the input are to be given to Look, each part once.
  bool watching() const { return watching_; }
  // A part of one input: whole elements.
  void Look(const char* data, int64_t bytes);

  // What was found, by buffer.
  std::vector<BadValues> Take();

 private:
  void Note(const char* data, int64_t elements);

  const Collective* collective_ = nullptr;
  ValueKernels kernels_;
  int64_t element_bytes_ = 1;
  bool watching_ = false;
  std::vector<BadValues> found_;
};

// How many bytes of the input the steps of a schedule read; for each byte that is read twice, two.
// -1 for Adasum's steps, which read in a way of their own.
int64_t InputBytesRead(const Schedule& schedule);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_VALUE_CHECK_H_
