#include "ops/runtime/backend/arena/arena_data.h"

#include <algorithm>
#include <cstring>

namespace tfring {
namespace {

// What is added up at a time: a result and what it is made of stay in the first-level cache.
constexpr int64_t kCachedBytes = 8 << 10;

// Two for each level of the sums of up to 2^16 members: those of the left and of the right side.
constexpr int64_t kPlaces = 2 * 16;

// How many of `count` members stand on the left of the last sum in the canonical order: the largest
// power of two below `count`.
int LeftOf(int count) {
  int left = 1;
  while (left * 2 < count) left *= 2;
  return left;
}

}  // namespace

void ArenaData::Start(const Collective& collective, const Reduction& reduction) {
  MapBuffers(collective, &input_, &output_);
  reduction_ = reduction;
  element_bytes_ = DataTypeSize(collective.dtype);
  self_ = collective.self;
}

void ArenaData::Stage(int64_t offset, int64_t bytes, char* to) {
  const bool scales = !reduction_.before.identity();
  for (int64_t done = 0, part = 0; done < bytes; done += part) {
    const char* from = input_.At(offset + done, &part);
    part = std::min(part, bytes - done);
    if (scales) {
      reduction_.kernels->scale(to + done, from, part / element_bytes_, reduction_.before);
    } else {
      std::memcpy(to + done, from, static_cast<size_t>(part));
    }
  }
}

void ArenaData::Store(int64_t offset, int64_t bytes, const char* from) {
  for (int64_t done = 0, part = 0; done < bytes; done += part) {
    char* to = output_.At(offset + done, &part);
    part = std::min(part, bytes - done);
    std::memcpy(to, from + done, static_cast<size_t>(part));
  }
}

void ArenaData::CopyOwn(int64_t from, int64_t to, int64_t bytes) {
  int64_t part = 0;
  for (int64_t done = 0; done < bytes; done += part) {
    int64_t from_here = 0;
    int64_t to_here = 0;
    const char* source = input_.At(from + done, &from_here);
    char* result = output_.At(to + done, &to_here);
    part = std::min({bytes - done, from_here, to_here});
    if (result != source) std::memcpy(result, source, static_cast<size_t>(part));
  }
}

const char* ArenaData::Own() {
  if (reduction_.before.identity()) return own_;
  scaled_.resize(kCachedBytes);
  reduction_.kernels->scale(scaled_.data(), own_, part_ / element_bytes_, reduction_.before);
  return scaled_.data();
}

char* ArenaData::Place(int place) {
  if (sums_.empty()) sums_.resize(kPlaces * kCachedBytes);
  return sums_.data() + place * kCachedBytes;
}

const char* ArenaData::InputOf(int member) {
  return member == self_ ? Own() : (*inputs_)[member] + done_;
}

const char* ArenaData::Add(int first, int count, int place) {
  if (count == 1 && !widens_) return InputOf(first);
  const int64_t elements = part_ / element_bytes_;
  char* to = Place(place);
  if (count == 1) {
    reduction_.kernels->widen(to, InputOf(first), elements);
  } else if (count == 2 && widens_) {
    reduction_.kernels->widening_sum(to, InputOf(first), InputOf(first + 1), elements, Scale());
  } else {
    const int left = LeftOf(count);
    const int below = (place / 2 + 1) * 2;
    const char* a = Add(first, left, below);
    const char* b = Add(first + left, count - left, below + 1);
    combine_(to, a, b, elements, Scale());
  }
  return to;
}

void ArenaData::Reduce(int64_t from, int64_t to, int64_t bytes,
                       const std::vector<const char*>& inputs, char* copy) {
  inputs_ = &inputs;
  const int count = static_cast<int>(inputs.size());
  const int left = LeftOf(count);
  const ReduceKernels& kernels = *reduction_.kernels;
  // A sum of two is one step, which is float32 anyway.
  widens_ = count > 2 && kernels.narrowing_sum != nullptr && reduction_.combine == kernels.sum;
  combine_ = widens_ ? FindReduceKernels(DataType::kFloat32)->sum : reduction_.combine;
  const ReduceKernels::CombineFn finish = widens_ ? kernels.narrowing_sum : reduction_.combine;
  const int64_t most = widens_ ? kCachedBytes / 2 : kCachedBytes;
  for (done_ = 0; done_ < bytes; done_ += part_) {
    int64_t from_here = 0;
    int64_t to_here = 0;
    own_ = input_.At(from + done_, &from_here);
    char* result = output_.At(to + done_, &to_here);
    part_ = std::min({bytes - done_, from_here, to_here, most});
    const char* a = Add(0, left, 0);
    const char* b = Add(left, count - left, 1);
    finish(result, a, b, part_ / element_bytes_, reduction_.after);
    if (copy != nullptr) std::memcpy(copy + done_, result, static_cast<size_t>(part_));
  }
}

}  // namespace tfring
