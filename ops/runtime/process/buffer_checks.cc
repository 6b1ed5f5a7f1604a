#include "ops/runtime/process/buffer_checks.h"

#include <string>

namespace tfring {
namespace {

Status Wrong(const Request& request, const std::string& what) {
  return InvalidArgument(Describe(request) + ": " + what);
}

// What a call of one rank has to bring.
struct Needs {
  bool tensors = true;  // one buffer for each shape
  bool input = true;    // of the size of the shape
  bool output = false;  // the same
  bool allocate = false;
};

Needs NeedsOf(const Request& request, Rank self) {
  const bool root = request.root == self;
  switch (request.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
      return {true, true, true, false};
    case CollectiveKind::kReduce:
      return {true, true, root, false};
    case CollectiveKind::kScatter:
      return {true, root, false, true};
    case CollectiveKind::kSendRecv:
      return {root, root, false, !root};
    default:
      return {true, true, false, AllocatesOutput(request.kind)};
  }
}

bool Fits(const void* data, int64_t actual, int64_t expected) {
  return actual == expected && (expected == 0 || data != nullptr);
}

}  // namespace

Status CheckBuffers(const Request& request, const LocalCall& call, Rank self) {
  const Needs needs = NeedsOf(request, self);
  if (needs.allocate && !call.allocate) return Wrong(request, "no way to allocate the output");
  if (!needs.tensors) return OkStatus();
  if (call.buffers.size() != request.shapes.size()) {
    return Wrong(request, std::to_string(call.buffers.size()) + " buffers for " +
                              std::to_string(request.shapes.size()) + " shapes");
  }
  for (size_t t = 0; t < call.buffers.size(); ++t) {
    const TensorBuffer& buffer = call.buffers[t];
    const int64_t bytes = NumElements(request.shapes[t]) * DataTypeSize(request.dtype);
    if ((!needs.input || Fits(buffer.input, buffer.input_bytes, bytes)) &&
        (!needs.output || Fits(buffer.output, buffer.output_bytes, bytes))) {
      continue;
    }
    return Wrong(request,
                 "buffer " + std::to_string(t) + " (" + std::to_string(buffer.input_bytes) +
                     " bytes in, " + std::to_string(buffer.output_bytes) + " out) is not the " +
                     std::to_string(bytes) + " bytes of shape " + ShapeString(request.shapes[t]));
  }
  return OkStatus();
}

}  // namespace tfring
