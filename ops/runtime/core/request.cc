#include "ops/runtime/core/request.h"

#include <algorithm>
#include <cmath>

namespace tfring {
namespace {

// Keep every frame far below the largest that a transport carries.
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxTensors = 1u << 16;
constexpr size_t kMaxDimensions = 1u << 20;

Status CheckShapes(const Request& request) {
  if (request.kind == CollectiveKind::kBarrier) {
    if (request.shapes.empty()) return OkStatus();
    return InvalidArgument(Describe(request) + ": a barrier takes no tensors");
  }
  if (request.shapes.empty()) {
    return InvalidArgument(Describe(request) + ": at least one tensor is needed");
  }
  size_t dimensions = 0;
  for (size_t t = 0; t < request.shapes.size(); ++t) {
    const Shape& shape = request.shapes[t];
    dimensions += shape.size();
    for (int64_t dim : shape) {
      if (dim < 0) {
        return InvalidArgument(Describe(request) + ": shape " + ShapeString(shape) + " of tensor " +
                               std::to_string(t) + " has a negative dimension");
      }
    }
    if (request.kind == CollectiveKind::kAllgather && shape.empty()) {
      return InvalidArgument(Describe(request) + ": tensor " + std::to_string(t) +
                             " is a scalar; allgather joins along the first dimension, so reshape "
                             "it to [1]");
    }
  }
  if (request.shapes.size() > kMaxTensors || dimensions > kMaxDimensions) {
    return InvalidArgument(Describe(request) + ": " + std::to_string(request.shapes.size()) +
                           " tensors in one call are too many; split the list");
  }
  if (TotalBytes(request) == INT64_MAX) {
    return InvalidArgument(Describe(request) + ": the tensors hold more bytes than can be counted");
  }
  return OkStatus();
}

Status CheckReduction(const Request& request) {
  if (static_cast<int>(request.op) >= kNumReduceOps) {
    return InvalidArgument(Describe(request) + ": reduce op " +
                           std::to_string(static_cast<int>(request.op)) + " is unknown");
  }
  if (request.op == ReduceOp::kAdasum) {
    return Unimplemented(Describe(request) + ": Adasum is not supported; use Average or Sum");
  }
  if (!IsReducible(request.dtype)) {
    return InvalidArgument(Describe(request) + ": dtype " + DataTypeName(request.dtype) +
                           " cannot be reduced; cast it to a float or an integer type first");
  }
  if (!std::isfinite(request.prescale) || !std::isfinite(request.postscale)) {
    return InvalidArgument(Describe(request) + ": prescale and postscale have to be finite");
  }
  return OkStatus();
}

}  // namespace

bool operator==(const Request& a, const Request& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.prescale == b.prescale &&
         a.postscale == b.postscale && a.process_set == b.process_set && a.root == b.root &&
         a.layout_hash == b.layout_hash && a.group == b.group && a.shapes == b.shapes &&
         a.name == b.name;
}

std::string Describe(const Request& request) {
  return std::string(CollectiveKindName(request.kind)) + " of tensor '" + request.name + "'";
}

int64_t TotalBytes(const Request& request) {
  const int64_t size = DataTypeSize(request.dtype);
  int64_t total = 0;
  for (const Shape& shape : request.shapes) {
    int64_t bytes = 0;
    const int64_t elements = NumElements(shape);
    if (elements == INT64_MAX || __builtin_mul_overflow(elements, size, &bytes) ||
        __builtin_add_overflow(total, bytes, &total)) {
      return INT64_MAX;
    }
  }
  return total;
}

Status CheckRequest(const Request& request, const std::vector<Rank>& members) {
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
  if (static_cast<int>(request.dtype) >= kNumDataTypes) {
    return InvalidArgument(Describe(request) + ": dtype " +
                           std::to_string(static_cast<int>(request.dtype)) + " is unknown");
  }
  TFRING_RETURN_IF_ERROR(CheckShapes(request));
  if (request.kind == CollectiveKind::kAllreduce) return CheckReduction(request);
  if (request.kind == CollectiveKind::kBroadcast &&
      !std::binary_search(members.begin(), members.end(), request.root)) {
    return InvalidArgument(Describe(request) + ": root rank " + std::to_string(request.root) +
                           " is not among the ranks that take part (" + RanksString(members) + ")");
  }
  return OkStatus();
}

}  // namespace tfring
