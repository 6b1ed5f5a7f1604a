#ifndef TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_BUFFER_MAP_H_
#define TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_BUFFER_MAP_H_

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "ops/runtime/interfaces/collective_backend.h"

namespace tfring {

// One address space over pieces of memory that lie anywhere: the concatenation of a collective's
// tensors, so that schedules need no copy into one buffer. A value type; does not own the memory.
class BufferMap {
 public:
  void Clear();
  void Add(void* data, int64_t bytes);
  int64_t bytes() const { return begin_.empty() ? 0 : begin_.back() + size_.back(); }

  // The memory at `offset` < bytes(): its address, and in `available` how much follows it in one
  // piece.
  char* At(int64_t offset, int64_t* available) const;

  // Describes up to `max` pieces of [offset, offset + bytes); returns how many.
  int Collect(int64_t offset, int64_t bytes, struct iovec* pieces, int max) const;

 private:
  size_t Find(int64_t offset) const;

  std::vector<char*> data_;
  std::vector<int64_t> begin_;
  std::vector<int64_t> size_;
};

// How a collective uses one side of this rank's tensors: their inputs or their outputs.
struct SideLayout {
  using Blocks = std::vector<std::vector<int64_t>>;  // [tensor][member]

  bool used = true;                // false: this rank needs no memory there
  const Blocks* blocks = nullptr;  // the side consists of the blocks of all members, in order
  const Blocks* own = nullptr;     // the side is this rank's own block
};
struct Sides {
  SideLayout input;
  SideLayout output;
};
Sides SidesOf(const Collective& collective);

// The input and output spaces of a collective on this rank. A side that consists of blocks is
// mapped member by member: the blocks of member 0 in all tensors, then those of member 1, so that
// what one member sends or receives is one range. Sides that this rank does not use are empty.
void MapBuffers(const Collective& collective, BufferMap* input, BufferMap* output);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_SCHEDULE_BUFFER_MAP_H_
