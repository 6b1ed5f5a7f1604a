#include "ops/runtime/backend/schedule/step_executor.h"

#include <algorithm>
#include <cstring>

namespace tfring {

static_assert(sizeof(AdasumDots) == kAdasumDotsBytes);

void StepExecutor::Prepare(const Collective& collective, const Schedule& schedule,
                           const Reduction& reduction) {
  MapBuffers(collective, &input_, &output_);
  const size_t scratch_bytes = static_cast<size_t>(schedule.scratch_bytes);
  if (scratch_memory_.size() < scratch_bytes) scratch_memory_.resize(scratch_bytes);
  scratch_.Clear();
  scratch_.Add(scratch_memory_.data(), schedule.scratch_bytes);
  std::fill_n(scratch_memory_.begin(), schedule.zeroed_bytes, '\0');
  reduction_ = reduction;
  element_bytes_ = reduction.kernels != nullptr ? DataTypeSize(collective.dtype) : 1;
  if (!reduction.before.identity()) ApplyScaleBefore(collective);
}

void StepExecutor::ApplyScaleBefore(const Collective& collective) {
  if (collective.kind != CollectiveKind::kAllreduce) {
    // No output of the input's size exists to scale into.
    const int64_t bytes = input_.bytes();
    scaled_memory_.resize(static_cast<size_t>(bytes));
    for (int64_t done = 0, part = 0; done < bytes; done += part) {
      const char* from = input_.At(done, &part);
      reduction_.kernels->scale(scaled_memory_.data() + done, from, part / element_bytes_,
                                reduction_.before);
    }
    input_.Clear();
    input_.Add(scaled_memory_.data(), bytes);
    return;
  }
  for (const TensorBuffer& buffer : collective.buffers) {
    reduction_.kernels->scale(buffer.output, buffer.input, buffer.input_bytes / element_bytes_,
                              reduction_.before);
  }
  input_ = output_;
}

const BufferMap& StepExecutor::MapOf(Space space) const {
  if (space == Space::kInput) return input_;
  return space == Space::kOutput ? output_ : scratch_;
}

Scale StepExecutor::ScaleOf(const Step& step) const {
  return step.finish ? reduction_.after : Scale();
}

int StepExecutor::Collect(const Range& range, int64_t done, struct iovec* pieces, int max) const {
  return MapOf(range.space).Collect(range.offset + done, range.bytes - done, pieces, max);
}

void StepExecutor::TakeReceived(const Step& step, int64_t done, const char* data, int64_t bytes) {
  while (bytes > 0) {
    int64_t from_here = 0;
    int64_t to_here = 0;
    const char* from = MapOf(step.src.space).At(step.src.offset + done, &from_here);
    char* to = MapOf(step.dst.space).At(step.dst.offset + done, &to_here);
    const int64_t part = std::min({bytes, from_here, to_here});
    reduction_.Combine(to, from, data, part / element_bytes_, step.summed, step.finish);
    data += part;
    done += part;
    bytes -= part;
  }
}

template <typename Apply>
void StepExecutor::ForPieces(const Step& step, Apply apply) const {
  int64_t done = 0;
  while (done < step.dst.bytes) {
    int64_t left_here = 0;
    int64_t right_here = 0;
    int64_t to_here = 0;
    const char* left = MapOf(step.src.space).At(step.src.offset + done, &left_here);
    const char* right = MapOf(step.src2.space).At(step.src2.offset + done, &right_here);
    char* to = MapOf(step.dst.space).At(step.dst.offset + done, &to_here);
    const int64_t part = std::min({step.dst.bytes - done, left_here, right_here, to_here});
    apply(to, left, right, part / element_bytes_);
    done += part;
  }
}

void StepExecutor::Combine(const Step& step) {
  ForPieces(step, [&](char* to, const char* left, const char* right, int64_t count) {
    reduction_.Combine(to, left, right, count, step.summed, step.finish);
  });
}

void StepExecutor::Copy(const Step& step) {
  const Scale scale = ScaleOf(step);
  int64_t done = 0;
  while (done < step.dst.bytes) {
    int64_t from_here = 0;
    int64_t to_here = 0;
    const char* from = MapOf(step.src.space).At(step.src.offset + done, &from_here);
    char* to = MapOf(step.dst.space).At(step.dst.offset + done, &to_here);
    const int64_t part = std::min({step.dst.bytes - done, from_here, to_here});
    if (!scale.identity()) {
      reduction_.kernels->scale(to, from, part / element_bytes_, scale);
    } else if (to != from) {
      std::memcpy(to, from, static_cast<size_t>(part));
    }
    done += part;
  }
}

void StepExecutor::AddDots(const Step& step) {
  char* const place = scratch_memory_.data() + step.dst.offset;
  AdasumDots dots;
  std::memcpy(&dots, place, sizeof(dots));
  for (int64_t done = 0, part = 0; done < step.src.bytes; done += part) {
    int64_t left_here = 0;
    int64_t right_here = 0;
    const char* left = MapOf(step.src.space).At(step.src.offset + done, &left_here);
    const char* right = MapOf(step.src2.space).At(step.src2.offset + done, &right_here);
    part = std::min({step.src.bytes - done, left_here, right_here});
    reduction_.adasum->dots(left, right, part / element_bytes_, &dots);
  }
  std::memcpy(place, &dots, sizeof(dots));
}

void StepExecutor::CombineByDots(const Step& step) {
  AdasumDots dots;
  std::memcpy(&dots, scratch_memory_.data() + step.dots, sizeof(dots));
  ForPieces(step, [&](char* to, const char* left, const char* right, int64_t count) {
    reduction_.adasum->combine(to, left, right, count, dots, ScaleOf(step).factor);
  });
}

void StepExecutor::Execute(const Step& step) {
  if (step.kind == StepKind::kReduce) Combine(step);
  if (step.kind == StepKind::kCopy) Copy(step);
  if (step.kind == StepKind::kAdasumDots) AddDots(step);
  if (step.kind == StepKind::kAdasumAdd) {
    char* scratch = scratch_memory_.data();
    AddDoubles(scratch + step.dst.offset, scratch + step.src.offset, scratch + step.src2.offset,
               step.dst.bytes / static_cast<int64_t>(sizeof(double)));
  }
  if (step.kind == StepKind::kAdasumCombine) CombineByDots(step);
}

}  // namespace tfring
