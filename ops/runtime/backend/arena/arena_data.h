#ifndef TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_DATA_H_
#define TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_DATA_H_

#include <cstdint>
#include <vector>

#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/backend/schedule/buffer_map.h"
#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// The part of a collective in arenas that touches tensors. It copies the input of this rank to
// where others see it, adds up the inputs of all members in the canonical order (see
// AppendCanonicalSum), and copies what others have staged to the output. Offsets are bytes of the
// input or output space (see MapBuffers), at whole elements. Sums of 16-bit floats are made in
// float32 and rounded once, at the end. It works on small parts, so that the output of one pass is
// still in the cache for the next. Used by one thread.
class ArenaData {
 public:
  // The buffers of `collective` must stay valid until the next call.
  void Start(const Collective& collective, const Reduction& reduction);

  // The input, scaled where the reduction asks for it, to `to`.
  void Stage(int64_t offset, int64_t bytes, char* to);

  // The sum of the input at `from` and of what the others have staged for it into the output at
  // `to`, and to `copy` if that is not null. inputs[m]: what member m has staged; not used for this
  // rank.
  void Reduce(int64_t from, int64_t to, int64_t bytes, const std::vector<const char*>& inputs,
              char* copy);

  // What another rank has staged, or a finished result, into the output.
  void Store(int64_t offset, int64_t bytes, const char* from);

  // The input at `from` into the output at `to`.
  void CopyOwn(int64_t from, int64_t to, int64_t bytes);

 private:
  // Adds up `count` members from `first` on; the result is where the sum is. `place`: where it may
  // be put; even on the left side of the sum above, odd on the right side.
  const char* Add(int first, int count, int place);
  const char* InputOf(int member);
  const char* Own();
  char* Place(int place);

  BufferMap input_;
  BufferMap output_;
  Reduction reduction_;
  int64_t element_bytes_ = 1;
  int self_ = 0;
  std::vector<char> sums_;    // of some of the members, by place
  std::vector<char> scaled_;  // the own input times the scale before
  // The sum in progress.
  bool widens_ = false;  // sums of 16-bit floats are float32 until they are complete
  ReduceKernels::CombineFn combine_ = nullptr;
  const std::vector<const char*>* inputs_ = nullptr;
  const char* own_ = nullptr;
  int64_t done_ = 0;
  int64_t part_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ARENA_ARENA_DATA_H_
