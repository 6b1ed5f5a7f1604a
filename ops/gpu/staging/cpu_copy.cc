#include "ops/gpu/staging/cpu_copy.h"

#include <algorithm>

namespace tfring {
namespace {

constexpr int64_t kNowhere = -1;

// Assigns addresses in the CPU memory, from its beginning.
class CpuSpace {
 public:
  int64_t Take(int64_t bytes) {
    const int64_t at = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 64;
  int64_t used_ = 0;
};

}  // namespace

StagingLayout LayOut(const Collective& collective) {
  StagingLayout layout;
  CpuSpace space;
  const KindTraits& traits = Traits(collective.kind);
  const bool root = collective.self == collective.root;
  const bool reads = Includes(traits.input, root);
  const bool writes = Includes(traits.output, root);
  for (size_t c = 0; c < collective.device_calls.size(); ++c) {
    const DeviceCall& call = collective.device_calls[c];
    for (size_t b = call.first; b < call.first + call.count; ++b) {
      const TensorBuffer& buffer = collective.buffers[b];
      const bool in = reads && buffer.input_bytes > 0;
      const bool out = writes && buffer.output_bytes > 0;
      const bool both = in && out && buffer.input_bytes == buffer.output_bytes;
      const bool in_place = both && buffer.input == buffer.output;
      // An allreduce may overwrite its input here, because the input is a copy.
      const bool shared = in_place || (both && collective.kind == CollectiveKind::kAllreduce);
      StagedBuffer staged{b, kNowhere, kNowhere};
      if (in) staged.input = space.Take(buffer.input_bytes);
      if (out) staged.output = shared ? staged.input : space.Take(buffer.output_bytes);
      if (in)
        layout.in.push_back({c, const_cast<void*>(buffer.input), staged.input, buffer.input_bytes});
      // The root of a broadcast already has its output if the output is its input.
      const bool unchanged = in_place && collective.kind == CollectiveKind::kBroadcast;
      if (out && !unchanged) {
        layout.out.push_back({c, buffer.output, staged.output, buffer.output_bytes});
      }
      layout.buffers.push_back(staged);
    }
  }
  layout.bytes = space.used();
  return layout;
}

void MoveToCpu(const StagingLayout& layout, char* memory, Collective* collective) {
  for (const StagedBuffer& staged : layout.buffers) {
    TensorBuffer& buffer = collective->buffers[staged.buffer];
    buffer.input = staged.input == kNowhere ? nullptr : memory + staged.input;
    buffer.output = staged.output == kNowhere ? nullptr : memory + staged.output;
  }
  collective->device_calls.clear();
  collective->path = DataPath::kCpu;
}

}  // namespace tfring
