#include "ops/runtime/engine/collective_builder.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

namespace tfring {
namespace {

// Sizes of one allgather tensor as the plan gives them.
struct Gathered {
  Shape shape;                  // of the output
  std::vector<int64_t> blocks;  // bytes, by member
  int64_t bytes = 0;
};

// False if the dimensions make no sense or overflow: they came over the wire.
bool Measure(const Shape& own, int64_t element_bytes, const int64_t* first_dims, size_t members,
             size_t self, Gathered* out) {
  if (own.empty() || first_dims[self] != own[0]) return false;
  int64_t row_bytes = element_bytes;
  for (size_t d = 1; d < own.size(); ++d) {
    if (__builtin_mul_overflow(row_bytes, own[d], &row_bytes)) return false;
  }
  out->shape = own;
  out->shape[0] = 0;
  for (size_t m = 0; m < members; ++m) {
    int64_t block = 0;
    if (first_dims[m] < 0 || __builtin_mul_overflow(first_dims[m], row_bytes, &block) ||
        __builtin_add_overflow(out->bytes, block, &out->bytes) ||
        __builtin_add_overflow(out->shape[0], first_dims[m], &out->shape[0])) {
      return false;
    }
    out->blocks.push_back(block);
  }
  return true;
}

Status AllocateOutput(const std::string& name, int tensor, const Gathered& gathered,
                      RunningCall* call) {
  TensorBuffer& buffer = call->entry.buffers[static_cast<size_t>(tensor)];
  buffer.output_bytes = gathered.bytes;
  Result<void*> memory = call->entry.allocate(tensor, gathered.shape);
  if (memory.ok() && (*memory != nullptr || gathered.bytes == 0)) {
    buffer.output = *memory;
    return OkStatus();
  }
  call->local_failure = memory.ok()
                            ? Internal("allgather of tensor '" + name +
                                       "': no memory for the output " + ShapeString(gathered.shape))
                            : memory.status();
  call->scratch.emplace_back(new (std::nothrow) char[static_cast<size_t>(gathered.bytes)]);
  buffer.output = call->scratch.back().get();
  if (buffer.output == nullptr) return call->local_failure;
  return OkStatus();
}

Status AddGathered(const PlanItem& item, DataType dtype, size_t members, size_t self,
                   RunningCall* call, Collective* out) {
  const Status unfit =
      Internal("the plan for allgather '" + item.name + "' does not fit what this rank submitted");
  if (item.first_dims.size() != call->shapes.size() * members) return unfit;
  for (size_t t = 0; t < call->shapes.size(); ++t) {
    Gathered gathered;
    if (!Measure(call->shapes[t], DataTypeSize(dtype), item.first_dims.data() + t * members,
                 members, self, &gathered)) {
      return unfit;
    }
    TFRING_RETURN_IF_ERROR(AllocateOutput(item.name, static_cast<int>(t), gathered, call));
    out->block_bytes.push_back(std::move(gathered.blocks));
  }
  return OkStatus();
}

int PositionOf(const std::vector<Rank>& members, Rank rank) {
  auto it = std::lower_bound(members.begin(), members.end(), rank);
  return it != members.end() && *it == rank ? static_cast<int>(it - members.begin()) : -1;
}

}  // namespace

Result<Collective> BuildCollective(const PlanRun& run, Rank self,
                                   const std::vector<RunningCall*>& calls) {
  const Plan& plan = run.plan;
  Collective out;
  out.sequence = plan.sequence;
  out.kind = plan.kind;
  out.dtype = plan.dtype;
  out.op = plan.op;
  out.prescale = plan.prescale;
  out.postscale = plan.postscale;
  out.members = run.members;
  out.self = PositionOf(run.members, self);
  if (plan.kind == CollectiveKind::kBroadcast) out.root = PositionOf(run.members, plan.root);
  if (out.self < 0 || out.root < 0 || calls.size() != plan.items.size()) {
    return Internal("plan " + std::to_string(plan.sequence) + " (" + CollectiveKindName(plan.kind) +
                    ") does not fit the calls of rank " + std::to_string(self));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (plan.kind == CollectiveKind::kAllgather) {
      TFRING_RETURN_IF_ERROR(AddGathered(plan.items[i], plan.dtype, run.members.size(),
                                         static_cast<size_t>(out.self), calls[i], &out));
    }
    const std::vector<TensorBuffer>& buffers = calls[i]->entry.buffers;
    out.buffers.insert(out.buffers.end(), buffers.begin(), buffers.end());
  }
  return out;
}

Status CheckBuffers(const Request& request, const Entry& entry) {
  const std::string what =
      std::string(CollectiveKindName(request.kind)) + " of tensor '" + request.name + "': ";
  if (entry.buffers.size() != request.shapes.size()) {
    return InvalidArgument(what + std::to_string(entry.buffers.size()) + " buffers for " +
                           std::to_string(request.shapes.size()) + " shapes");
  }
  const bool gather = request.kind == CollectiveKind::kAllgather;
  if (gather && !entry.allocate) return InvalidArgument(what + "no way to allocate the output");
  for (size_t t = 0; t < entry.buffers.size(); ++t) {
    const TensorBuffer& buffer = entry.buffers[t];
    const int64_t bytes = NumElements(request.shapes[t]) * DataTypeSize(request.dtype);
    const bool input_fits = buffer.input_bytes == bytes && (bytes == 0 || buffer.input != nullptr);
    const bool output_fits =
        gather || (buffer.output_bytes == bytes && (bytes == 0 || buffer.output != nullptr));
    if (!input_fits || !output_fits) {
      return InvalidArgument(
          what + "buffer " + std::to_string(t) + " (" + std::to_string(buffer.input_bytes) +
          " bytes in, " + std::to_string(buffer.output_bytes) + " out) is not the " +
          std::to_string(bytes) + " bytes of shape " + ShapeString(request.shapes[t]));
    }
  }
  return OkStatus();
}

}  // namespace tfring
