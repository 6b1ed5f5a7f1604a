#include "ops/runtime/protocol/message/request_checks.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tfring {
namespace {

// These bounds keep every frame far below the largest that a transport carries.
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxTensors = 1u << 16;
constexpr size_t kMaxDimensions = 1u << 20;
constexpr size_t kMaxCallSiteBytes = 256;

Status Wrong(const Request& request, const std::string& what) {
  return InvalidArgument(Describe(request) + ": " + what);
}

bool Fits(const void* data, int64_t actual, int64_t expected) {
  return actual == expected && (expected == 0 || data != nullptr);
}

Status CheckCount(const Request& request, bool receives) {
  const size_t count = request.shapes.size();
  const size_t max = Traits(request.kind).max_tensors;
  if (max == 0 && count > 0) {
    return Wrong(request,
                 std::string("a ") + CollectiveKindName(request.kind) + " takes no tensors");
  }
  if (max > 0 && count == 0 && !receives) {
    return Wrong(request, "at least one tensor is needed");
  }
  if (count > max) {
    return Wrong(request, "one tensor per call, not " + std::to_string(count));
  }
  return OkStatus();
}

// With `receives`, shapes and dimensions may be left to the sender.
Status CheckShapes(const Request& request, bool receives) {
  TFRING_RETURN_IF_ERROR(CheckCount(request, receives));
  size_t dimensions = 0;
  for (size_t t = 0; t < request.shapes.size(); ++t) {
    const Shape& shape = request.shapes[t];
    dimensions += shape.size();
    for (int64_t dim : shape) {
      if (dim < (receives ? -1 : 0)) {
        return Wrong(request, "shape " + ShapeString(shape) + " of tensor " + std::to_string(t) +
                                  " has a negative dimension");
      }
    }
    if (Traits(request.kind).has_rows && shape.empty()) {
      return Wrong(request, "tensor " + std::to_string(t) + " is a scalar; " +
                                CollectiveKindName(request.kind) +
                                " works along the first dimension, so reshape it to [1]");
    }
  }
  if (request.shapes.size() > kMaxTensors || dimensions > kMaxDimensions) {
    return Wrong(request, std::to_string(request.shapes.size()) +
                              " tensors in one call are too many; split the list");
  }
  if (!receives && TotalBytes(request) == INT64_MAX) {
    return Wrong(request, "the tensors hold more bytes than can be counted");
  }
  return OkStatus();
}

// Checks the splits of an alltoall, or of the root of a scatter.
Status CheckRows(const Request& request, const std::vector<Rank>& members) {
  const int64_t rows = request.shapes[0][0];
  const auto count = static_cast<int64_t>(members.size());
  if (request.splits.empty()) {
    if (rows % count == 0) return OkStatus();
    return Wrong(request,
                 std::to_string(rows) + " rows cannot be cut into " + std::to_string(count) +
                     " equal parts; pass splits, or a first dimension that is a multiple of " +
                     std::to_string(count));
  }
  if (request.splits.size() != members.size()) {
    return Wrong(request, std::to_string(request.splits.size()) + " splits for " +
                              std::to_string(count) +
                              " ranks; pass one number of rows per rank of the process set");
  }
  int64_t sum = 0;
  for (size_t i = 0; i < request.splits.size(); ++i) {
    const int64_t split = request.splits[i];
    if (split < 0) {
      return Wrong(request, "splits[" + std::to_string(i) + "] is " + std::to_string(split) +
                                ": a number of rows is 0 or more");
    }
    if (__builtin_add_overflow(sum, split, &sum)) sum = INT64_MAX;
  }
  if (sum == rows) return OkStatus();
  return Wrong(request, "splits add up to " + std::to_string(sum) + ", but the tensor has " +
                            std::to_string(rows) + " rows; pass splits with that sum instead of " +
                            ShapeString(request.splits));
}

Status CheckNewSet(const Request& request, const std::vector<Rank>& world) {
  const std::vector<Rank>& ranks = request.set_ranks;
  const std::string text = "ranks " + ShapeString(Shape(ranks.begin(), ranks.end()));
  if (ranks.empty()) {
    return Wrong(request, "a process set needs at least one rank");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= static_cast<Rank>(world.size())) {
      return Wrong(request, text + " name rank " + std::to_string(ranks[i]) +
                                ", but ranks go from 0 to " + std::to_string(world.size() - 1));
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return Wrong(request, text + " have to ascend, each rank once");
    }
  }
  return OkStatus();
}

Status CheckRemovedSet(const Request& request) {
  if (request.removed_set > kGlobalProcessSet) return OkStatus();
  return Wrong(request, "process set " + std::to_string(request.removed_set) +
                            " cannot be removed; name one that was added");
}

Status CheckSplits(const Request& request, const std::vector<Rank>& members, Rank self) {
  const bool scatter = request.kind == CollectiveKind::kScatter;
  if (request.kind == CollectiveKind::kAlltoall || (scatter && self == request.root)) {
    return CheckRows(request, members);
  }
  // Those of a scatter are ignored on ranks other than the root.
  if (request.splits.size() <= (scatter ? members.size() : 0)) return OkStatus();
  return Wrong(request, "splits " + ShapeString(request.splits) + " have no meaning here");
}

bool Among(Rank rank, const std::vector<Rank>& members) {
  return std::binary_search(members.begin(), members.end(), rank);
}

Status CheckEnds(const Request& request, const std::vector<Rank>& members, Rank self) {
  for (Rank end : {request.root, request.peer}) {
    if (Among(end, members)) continue;
    return Wrong(request,
                 "rank " + std::to_string(end) + " is not among the ranks of the process set (" +
                     RanksString(members) +
                     "). A function that was traced before another init() has the ranks of "
                     "that time: trace it again");
  }
  if (request.root == request.peer) {
    return Wrong(request, "rank " + std::to_string(request.root) +
                              " cannot send to itself; source and destination have to differ");
  }
  if (self == request.root || self == request.peer) return OkStatus();
  return InvalidArgument(Describe(request) + " goes from rank " + std::to_string(request.root) +
                         " to rank " + std::to_string(request.peer) + ", but rank " +
                         std::to_string(self) +
                         " called it; only those two may. A function that was traced before "
                         "another init() has the ranks of that time: trace it again");
}

Status CheckAdasum(const Request& request) {
  if (request.op != ReduceOp::kAdasum) return OkStatus();
  if (request.kind != CollectiveKind::kAllreduce) {
    return Wrong(request, "Adasum is available for allreduce; use Average or Sum here");
  }
  switch (request.dtype) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
      return OkStatus();
    default:
      return Wrong(request,
                   std::string("Adasum needs float16, bfloat16, float32 or float64, not ") +
                       DataTypeName(request.dtype) + "; cast the tensor, or use Average or Sum");
  }
}

Status CheckReduction(const Request& request) {
  if (static_cast<int>(request.op) >= kNumReduceOps) {
    return Wrong(request,
                 "reduce op " + std::to_string(static_cast<int>(request.op)) + " is unknown");
  }
  if (!IsReducible(request.dtype)) {
    return Wrong(request, std::string("dtype ") + DataTypeName(request.dtype) +
                              " cannot be reduced; cast it to a float or an integer type first");
  }
  TFRING_RETURN_IF_ERROR(CheckAdasum(request));
  if (!std::isfinite(request.prescale) || !std::isfinite(request.postscale)) {
    return Wrong(request, "prescale and postscale have to be finite");
  }
  return OkStatus();
}

// The buffers have the sizes of the shapes, and outputs can be allocated where the kind needs it.
Status CheckBuffers(const Request& request, const CallMemory& memory, Rank self) {
  const KindTraits& traits = Traits(request.kind);
  const bool root = request.root == self;
  if (Includes(traits.allocates, root) && !memory.allocates) {
    return Wrong(request, "no way to allocate the output");
  }
  if (request.kind == CollectiveKind::kSendRecv && !root) return OkStatus();
  const bool input = Includes(traits.input, root);
  const bool output = Includes(traits.output, root) && !traits.allocates_output();
  if (memory.buffers.size() != request.shapes.size()) {
    return Wrong(request, std::to_string(memory.buffers.size()) + " buffers for " +
                              std::to_string(request.shapes.size()) + " shapes");
  }
  for (size_t t = 0; t < memory.buffers.size(); ++t) {
    const TensorBuffer& buffer = memory.buffers[t];
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

// A send on the rank that receives, or the other way round, comes from a function that was traced
// when this rank had another number.
Status CheckDirection(const Request& request, const CallMemory& memory, Rank self) {
  if (request.kind != CollectiveKind::kSendRecv) return OkStatus();
  const bool has_input = std::any_of(memory.buffers.begin(), memory.buffers.end(),
                                     [](const TensorBuffer& buffer) { return buffer.input; });
  const bool receives = memory.allocates && !has_input;
  const bool sends = !memory.allocates && !memory.buffers.empty();
  const bool wrong = (self == request.root && receives) || (self == request.peer && sends);
  if (!wrong) return OkStatus();
  return Wrong(request, std::string(receives ? "recv" : "send") + " was called on rank " +
                            std::to_string(self) + ", which is the one that " +
                            (receives ? "sends" : "receives") +
                            ". A function that was traced before another init() has the ranks of "
                            "that time: trace it again");
}

}  // namespace

Status CheckRouting(const Request& request, const std::vector<Rank>& members, Rank self) {
  if (request.name.empty()) return InvalidArgument("a collective needs a name");
  if (request.name.size() > kMaxNameBytes) {
    return InvalidArgument("a tensor name of " + std::to_string(request.name.size()) +
                           " bytes is too long (at most " + std::to_string(kMaxNameBytes) +
                           "); it begins with '" + request.name.substr(0, 64) + "'");
  }
  if (static_cast<int>(request.kind) >= kNumCollectiveKinds) {
    return InvalidArgument("tensor '" + request.name + "': collective kind " +
                           std::to_string(static_cast<int>(request.kind)) + " is unknown");
  }
  if (request.refusal.size() > kMaxRefusalBytes) {
    return Wrong(request,
                 "a refusal of " + std::to_string(request.refusal.size()) + " bytes is too long");
  }
  if (request.call_site.size() > kMaxCallSiteBytes) {
    return Wrong(request, "a call site of " + std::to_string(request.call_site.size()) +
                              " bytes is too long");
  }
  if (request.layout.size() > kMaxLayoutBytes) {
    return Wrong(request,
                 "a layout of " + std::to_string(request.layout.size()) + " bytes is too long");
  }
  if (ChangesProcessSets(request.kind) && request.process_set != kGlobalProcessSet) {
    return Wrong(request, "all ranks have to take part, not only those of process set " +
                              std::to_string(request.process_set));
  }
  if (request.kind == CollectiveKind::kSendRecv) return CheckEnds(request, members, self);
  return OkStatus();
}

Status CheckContent(const Request& request, const std::vector<Rank>& members, Rank self,
                    const CallMemory* memory) {
  if (memory != nullptr) TFRING_RETURN_IF_ERROR(CheckDirection(request, *memory, self));
  if (static_cast<int>(request.dtype) >= kNumDataTypes) {
    return Wrong(request,
                 "dtype " + std::to_string(static_cast<int>(request.dtype)) + " is unknown");
  }
  const bool receives = request.kind == CollectiveKind::kSendRecv && self == request.peer;
  TFRING_RETURN_IF_ERROR(CheckShapes(request, receives));
  if (Traits(request.kind).reduces) TFRING_RETURN_IF_ERROR(CheckReduction(request));
  if (Traits(request.kind).has_root() && !Among(request.root, members)) {
    return Wrong(request, "root rank " + std::to_string(request.root) +
                              " is not among the ranks that take part (" + RanksString(members) +
                              ")");
  }
  if (request.kind == CollectiveKind::kAddProcessSet) {
    TFRING_RETURN_IF_ERROR(CheckNewSet(request, members));
  }
  if (request.kind == CollectiveKind::kRemoveProcessSet) {
    TFRING_RETURN_IF_ERROR(CheckRemovedSet(request));
  }
  TFRING_RETURN_IF_ERROR(CheckSplits(request, members, self));
  return memory == nullptr ? OkStatus() : CheckBuffers(request, *memory, self);
}

Status CheckRequest(const Request& request, const std::vector<Rank>& members, Rank self) {
  TFRING_RETURN_IF_ERROR(CheckRouting(request, members, self));
  return request.refusal.empty() ? CheckContent(request, members, self, nullptr) : OkStatus();
}

}  // namespace tfring
