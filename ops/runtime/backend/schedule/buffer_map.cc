#include "ops/runtime/backend/schedule/buffer_map.h"

#include <algorithm>
#include <utility>

namespace tfring {

void BufferMap::Clear() {
  data_.clear();
  begin_.clear();
  size_.clear();
}

void BufferMap::Add(void* data, int64_t bytes) {
  if (bytes <= 0) return;
  const int64_t begin = this->bytes();
  data_.push_back(static_cast<char*>(data));
  begin_.push_back(begin);
  size_.push_back(bytes);
}

size_t BufferMap::Find(int64_t offset) const {
  return std::upper_bound(begin_.begin(), begin_.end(), offset) - begin_.begin() - 1;
}

char* BufferMap::At(int64_t offset, int64_t* available) const {
  const size_t i = Find(offset);
  const int64_t within = offset - begin_[i];
  *available = size_[i] - within;
  return data_[i] + within;
}

int BufferMap::Collect(int64_t offset, int64_t bytes, struct iovec* pieces, int max) const {
  int count = 0;
  for (size_t i = Find(offset); bytes > 0 && count < max && i < data_.size(); ++i) {
    const int64_t within = offset - begin_[i];
    const int64_t part = std::min(size_[i] - within, bytes);
    pieces[count++] = {data_[i] + within, static_cast<size_t>(part)};
    offset += part;
    bytes -= part;
  }
  return count;
}

Sides SidesOf(const Collective& collective) {
  const bool root = collective.self == collective.root;
  Sides sides;
  sides.input.used = Includes(Traits(collective.kind).input, root);
  sides.output.used = Includes(Traits(collective.kind).output, root);
  switch (collective.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      sides.input.own = &collective.block_bytes;
      sides.output.blocks = &collective.block_bytes;
      break;
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kScatter:
      sides.input.blocks = &collective.block_bytes;
      sides.output.own = &collective.block_bytes;
      break;
    case CollectiveKind::kAlltoall:
      sides.input.blocks = &collective.send_bytes;
      sides.output.blocks = &collective.block_bytes;
      break;
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
    case CollectiveKind::kAddProcessSet:
    case CollectiveKind::kRemoveProcessSet:
      break;  // all tensors have one size, or there are none
  }
  return sides;
}

namespace {

template <typename Piece>
void AddAll(const Collective& collective, const SideLayout& layout, Piece piece_of,
            BufferMap* map) {
  map->Clear();
  if (!layout.used) return;
  const size_t tensors = collective.buffers.size();
  if (layout.blocks == nullptr) {
    for (const TensorBuffer& buffer : collective.buffers) {
      const auto [data, bytes] = piece_of(buffer);
      map->Add(data, bytes);
    }
    return;
  }
  std::vector<int64_t> filled(tensors, 0);
  for (size_t member = 0; member < collective.members.size(); ++member) {
    for (size_t t = 0; t < tensors; ++t) {
      const int64_t bytes = (*layout.blocks)[t][member];
      if (bytes > 0) map->Add(piece_of(collective.buffers[t]).first + filled[t], bytes);
      filled[t] += bytes;
    }
  }
}

}  // namespace

void MapBuffers(const Collective& collective, BufferMap* input, BufferMap* output) {
  using Piece = std::pair<char*, int64_t>;
  auto input_of = [](const TensorBuffer& buffer) {
    // Steps never write to the input space, unless the input is also the output.
    return Piece(static_cast<char*>(const_cast<void*>(buffer.input)), buffer.input_bytes);
  };
  auto output_of = [](const TensorBuffer& buffer) {
    return Piece(static_cast<char*>(buffer.output), buffer.output_bytes);
  };
  const Sides sides = SidesOf(collective);
  AddAll(collective, sides.input, input_of, input);
  AddAll(collective, sides.output, output_of, output);
}

}  // namespace tfring
