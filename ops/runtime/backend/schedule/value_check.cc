#include "ops/runtime/backend/schedule/value_check.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tfring {
namespace {

bool Adds(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kAdasum;
}

int64_t BytesOfInput(const Range& range) { return range.space == Space::kInput ? range.bytes : 0; }

}  // namespace

int64_t InputBytesRead(const Schedule& schedule) {
  int64_t bytes = 0;
  for (const Step& step : schedule.steps) {
    const StepKind kind = step.kind;
    const bool adasum = kind == StepKind::kAdasumDots || kind == StepKind::kAdasumAdd ||
                        kind == StepKind::kAdasumCombine;
    if (adasum) return -1;
    if (kind != StepKind::kRecv && kind != StepKind::kJoin) bytes += BytesOfInput(step.src);
    if (kind == StepKind::kReduce) bytes += BytesOfInput(step.src2);
  }
  return bytes;
}

void ValueCheck::Start(const Collective& collective, const Reduction& reduction, bool given) {
  watching_ = false;
  found_.clear();
  collective_ = &collective;
  if (reduction.kernels == nullptr || !Adds(collective.op)) return;
  kernels_ = reduction.kernels->values;
  if (kernels_.all_finite == nullptr) return;
  element_bytes_ = DataTypeSize(collective.dtype);
  watching_ = given;
  if (watching_) return;
  for (const TensorBuffer& buffer : collective.buffers) {
    Look(static_cast<const char*>(buffer.input), buffer.input_bytes);
  }
}

void ValueCheck::Look(const char* data, int64_t bytes) {
  for (int64_t done = 0; done < bytes; done += kBlockBytes) {
    const int64_t elements = std::min(kBlockBytes, bytes - done) / element_bytes_;
    if (!kernels_.all_finite(data + done, elements)) Note(data + done, elements);
  }
}

// Finds the buffer by its address: steps know only ranges of the collective. Calls are rare.
void ValueCheck::Note(const char* data, int64_t elements) {
  const std::less_equal<const char*> before;
  const std::vector<TensorBuffer>& buffers = collective_->buffers;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const char* begin = static_cast<const char*>(buffers[i].input);
    const int64_t bytes = buffers[i].input_bytes;
    if (bytes == 0 || !before(begin, data) || !before(data + 1, begin + bytes)) continue;
    auto entry = std::find_if(found_.begin(), found_.end(),
                              [i](const BadValues& bad) { return bad.buffer == i; });
    if (entry == found_.end()) {
      found_.push_back({i, collective_->dtype, bytes / element_bytes_, 0, 0});
      entry = found_.end() - 1;
    }
    kernels_.count(data, elements, &entry->nans, &entry->infinities);
    return;
  }
}

std::vector<BadValues> ValueCheck::Take() {
  watching_ = false;
  std::sort(found_.begin(), found_.end(),
            [](const BadValues& a, const BadValues& b) { return a.buffer < b.buffer; });
  return std::exchange(found_, {});
}

}  // namespace tfring
