#include "ops/runtime/backend/local_backend.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "ops/runtime/backend/algorithms/check_collective.h"
#include "ops/runtime/backend/reduction/reduction.h"
#include "ops/runtime/base/check.h"

namespace tfring {
namespace {

void Execute(const Collective& collective) {
  TFRING_CHECK(collective.members.size() == 1)
      << "a collective of " << collective.members.size() << " ranks in a world of one";
  const std::string contradiction = FindContradiction(collective);
  TFRING_CHECK(contradiction.empty()) << contradiction;
  const Reduction reduction = ResolveReduction(collective);
  for (const TensorBuffer& buffer : collective.buffers) {
    const void* from = buffer.input;
    for (const Scale& scale : {reduction.before, reduction.after}) {
      if (reduction.kernels == nullptr || scale.identity()) continue;
      reduction.kernels->scale(buffer.output, from,
                               buffer.output_bytes / DataTypeSize(collective.dtype), scale);
      from = buffer.output;
    }
    if (from != buffer.output && buffer.output_bytes > 0) {
      std::memcpy(buffer.output, from, static_cast<size_t>(buffer.output_bytes));
    }
  }
}

std::optional<Completion> Run(const Collective& collective, TimePoint) {
  Execute(collective);
  return Completion{collective.sequence, OkStatus(), kNoRank};
}

}  // namespace

LocalBackend::LocalBackend(const Config&, CompletionSink sink, ThreadPool* pool)
    : queue_({Run, [] {}}, std::move(sink), &poison_, pool) {}

LocalBackend::~LocalBackend() = default;

}  // namespace tfring
