#include "ops/runtime/process/buffer_checks.h"

#include <algorithm>
#include <string>

namespace tfring {
namespace {

Status Wrong(const Request& request, const std::string& what) {
  return InvalidArgument(Describe(request) + ": " + what);
}

bool Fits(const void* data, int64_t actual, int64_t expected) {
  return actual == expected && (expected == 0 || data != nullptr);
}

}  // namespace

Status CheckBuffers(const Request& request, const LocalCall& call, Rank self) {
  const KindTraits& traits = Traits(request.kind);
  const bool root = request.root == self;
  if (Includes(traits.allocates, root) && !call.allocate) {
    return Wrong(request, "no way to allocate the output");
  }
  if (request.kind == CollectiveKind::kSendRecv && !root) return OkStatus();
  const bool input = Includes(traits.input, root);
  const bool output = Includes(traits.output, root) && !traits.allocates_output();
  if (call.buffers.size() != request.shapes.size()) {
    return Wrong(request, std::to_string(call.buffers.size()) + " buffers for " +
                              std::to_string(request.shapes.size()) + " shapes");
  }
  for (size_t t = 0; t < call.buffers.size(); ++t) {
    const TensorBuffer& buffer = call.buffers[t];
    const int64_t bytes = NumElements(request.shapes[t]) * DataTypeSize(request.dtype);
    if ((!input || Fits(buffer.input, buffer.input_bytes, bytes)) &&
        (!output || Fits(buffer.output, buffer.output_bytes, bytes))) {
      continue;
    }
    return Wrong(request,
                 "buffer " + std::to_string(t) + " (" + std::to_string(buffer.input_bytes) +
                     " bytes in, " + std::to_string(buffer.output_bytes) + " out) is not the " +
                     std::to_string(bytes) + " bytes of shape " + ShapeString(request.shapes[t]));
  }
  return OkStatus();
}

Status CheckDirection(const Request& request, const LocalCall& call, Rank self) {
  if (request.kind != CollectiveKind::kSendRecv) return OkStatus();
  const bool has_input = std::any_of(call.buffers.begin(), call.buffers.end(),
                                     [](const TensorBuffer& buffer) { return buffer.input; });
  const bool receives = call.allocate && !has_input;
  const bool sends = !call.allocate && !call.buffers.empty();
  const bool wrong = (self == request.root && receives) || (self == request.peer && sends);
  if (!wrong) return OkStatus();
  return Wrong(request, std::string(receives ? "recv" : "send") + " was called on rank " +
                            std::to_string(self) + ", which is the one that " +
                            (receives ? "sends" : "receives") +
                            ". A function that was traced before another init() has the ranks of "
                            "that time: trace it again");
}

}  // namespace tfring
