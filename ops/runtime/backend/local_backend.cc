#include "ops/runtime/backend/local_backend.h"

#include <cstring>
#include <string>
#include <utility>

#include "ops/runtime/backend/reduction/reduction.h"

namespace tfring {
namespace {

Status Check(const Collective& collective) {
  if (collective.members.size() != 1) {
    return Internal("a collective of " + std::to_string(collective.members.size()) +
                    " ranks came to a rank that is alone");
  }
  for (size_t t = 0; t < collective.buffers.size(); ++t) {
    const TensorBuffer& buffer = collective.buffers[t];
    const bool no_memory =
        buffer.output_bytes > 0 && (buffer.input == nullptr || buffer.output == nullptr);
    if (buffer.input_bytes != buffer.output_bytes || buffer.output_bytes < 0 || no_memory) {
      return Internal("tensor " + std::to_string(t) + " has an input of " +
                      std::to_string(buffer.input_bytes) + " bytes and an output of " +
                      std::to_string(buffer.output_bytes) + (no_memory ? ", without memory" : ""));
    }
  }
  return OkStatus();
}

Status Execute(const Collective& collective) {
  TFRING_RETURN_IF_ERROR(Check(collective));
  Result<Reduction> reduction = Reduction();
  if (Reduces(collective.kind)) reduction = ResolveReduction(collective);
  if (!reduction.ok()) return reduction.status();
  for (const TensorBuffer& buffer : collective.buffers) {
    const void* from = buffer.input;
    for (const Scale& scale : {reduction->before, reduction->after}) {
      if (reduction->kernels == nullptr || scale.identity()) continue;
      reduction->kernels->scale(buffer.output, from,
                                buffer.output_bytes / DataTypeSize(collective.dtype), scale);
      from = buffer.output;
    }
    if (from != buffer.output && buffer.output_bytes > 0) {
      std::memcpy(buffer.output, from, static_cast<size_t>(buffer.output_bytes));
    }
  }
  return OkStatus();
}

Completion Run(const Collective& collective) {
  return {collective.sequence, Execute(collective), kNoRank};
}

}  // namespace

LocalBackend::LocalBackend(const Config&, CompletionSink sink)
    : thread_({Run, [] {}}, std::move(sink), &poison_) {}

LocalBackend::~LocalBackend() = default;

}  // namespace tfring
