#include "ops/runtime/backend/cpu/buffer_map.h"

#include <algorithm>

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

void MapBuffers(const Collective& collective, BufferMap* input, BufferMap* output) {
  input->Clear();
  output->Clear();
  for (const TensorBuffer& buffer : collective.buffers) {
    // Steps never write to the input space, unless it is the output as well.
    input->Add(const_cast<void*>(buffer.input), buffer.input_bytes);
  }
  if (collective.kind != CollectiveKind::kAllgather) {
    for (const TensorBuffer& buffer : collective.buffers) {
      output->Add(buffer.output, buffer.output_bytes);
    }
    return;
  }
  const size_t tensors = collective.buffers.size();
  std::vector<int64_t> filled(tensors, 0);
  for (size_t member = 0; member < collective.members.size(); ++member) {
    for (size_t t = 0; t < tensors; ++t) {
      const int64_t bytes = collective.block_bytes[t][member];
      if (bytes > 0)
        output->Add(static_cast<char*>(collective.buffers[t].output) + filled[t], bytes);
      filled[t] += bytes;
    }
  }
}

}  // namespace tfring
