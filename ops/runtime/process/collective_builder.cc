#include "ops/runtime/process/collective_builder.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "ops/runtime/base/check.h"
#include "ops/runtime/base/text.h"
#include "ops/runtime/process/output_layout.h"

namespace tfring {
namespace {

int PositionOf(const PlanRun& run, Rank rank) {
  const auto it = std::lower_bound(run.members.begin(), run.members.end(), rank);
  TFRING_CHECK(it != run.members.end() && *it == rank)
      << "rank " << rank << " takes no part in plan " << run.plan.sequence;
  return static_cast<int>(it - run.members.begin());
}

// Memory for an output that is thrown away, where the other tensors of the call are.
Result<std::shared_ptr<void>> AllocateScratch(const LocalCall& call, int64_t bytes) {
  if (call.stream != nullptr) return call.stream->AllocateScratch(bytes);
  char* memory = new (std::nothrow) char[static_cast<size_t>(bytes)];
  if (memory == nullptr) return ResourceExhausted("no scratch memory on the CPU");
  return std::shared_ptr<void>(memory, [](void* p) { delete[] static_cast<char*>(p); });
}

// Gives `buffer` memory for the output: the framework's, or scratch memory if it has none.
Status Allocate(const Collective& collective, const std::string& name, int tensor,
                const OutputLayout& layout, RunningCall* call, TensorBuffer* buffer) {
  buffer->output_bytes = layout.bytes;
  Result<void*> memory = call->call.allocate(tensor, layout.shape);
  if (memory.ok() && (*memory != nullptr || layout.bytes == 0)) {
    buffer->output = *memory;
    return OkStatus();
  }
  call->local_failure =
      memory.ok() ? Internal(std::string(CollectiveKindName(collective.kind)) + " of tensor '" +
                             name + "': no memory for the output " + ShapeString(layout.shape))
                  : memory.status();
  Result<std::shared_ptr<void>> scratch = AllocateScratch(call->call, layout.bytes);
  if (!scratch.ok()) return call->local_failure;
  buffer->output = scratch->get();
  call->scratch.push_back(std::move(*scratch));
  return OkStatus();
}

// Adds the buffers of a call whose outputs have to be allocated now.
Status AddAllocated(const PlanItem& item, RunningCall* call, Collective* out) {
  LayoutRequest request;
  request.kind = out->kind;
  request.dtype = out->dtype;
  request.members = out->members.size();
  request.self = static_cast<size_t>(out->self);
  request.root = static_cast<size_t>(out->root);
  const KindTraits& traits = Traits(out->kind);
  const bool root = out->self == out->root;
  // A receiver may have given no shape.
  const size_t tensors = out->kind == CollectiveKind::kSendRecv ? 1 : call->shapes.size();
  for (size_t t = 0; t < tensors; ++t) {
    const Shape own = t < call->shapes.size() ? call->shapes[t] : Shape();
    OutputLayout layout = LayoutOf(request, item.negotiated_values, t, own);
    TensorBuffer buffer;
    if (t < call->call.buffers.size() && Includes(traits.input, root)) {
      buffer.input = call->call.buffers[t].input;
      buffer.input_bytes = call->call.buffers[t].input_bytes;
    }
    if (Includes(traits.allocates, root)) {
      TFRING_RETURN_IF_ERROR(Allocate(*out, item.name, static_cast<int>(t), layout, call, &buffer));
    }
    out->buffers.push_back(buffer);
    if (out->kind == CollectiveKind::kSendRecv) continue;
    out->block_bytes.push_back(std::move(layout.blocks));
    if (out->kind != CollectiveKind::kAlltoall) continue;
    out->send_bytes.push_back(std::move(layout.sends));
    if (call->call.announce) call->call.announce(layout.rows);
  }
  // The framework may have given memory that kernels on its stream still use.
  const bool allocated = call->call.stream != nullptr && Includes(traits.allocates, root);
  return allocated ? call->call.stream->MarkReady() : OkStatus();
}

// Adds the buffers of a call that came with its outputs.
void AddGiven(const std::vector<TensorBuffer>& buffers, Collective* out) {
  for (TensorBuffer buffer : buffers) {
    if (!Includes(Traits(out->kind).output, out->self == out->root)) {
      buffer.output = nullptr;
      buffer.output_bytes = 0;
    }
    out->buffers.push_back(buffer);
  }
}

// Tells the backend that the buffers from number `first` on are those of this call's device.
void AddDeviceCall(const LocalCall& call, size_t first, Collective* out) {
  const size_t count = out->buffers.size() - first;
  if (call.stream == nullptr || count == 0) return;
  out->device_calls.push_back({call.stream, first, count, call.early, call.keeps});
}

// "allreduce of 'x' and 3 more".
std::string TextOf(const Plan& plan) {
  const std::string kind = CollectiveKindName(plan.kind);
  return plan.items.empty()
             ? kind
             : kind + " of " + FirstAndMore(plan.items.front().name, plan.items.size());
}

}  // namespace

Result<Collective> BuildCollective(const PlanRun& run, Rank self,
                                   const std::vector<RunningCall*>& calls) {
  const Plan& plan = run.plan;
  Collective out;
  out.sequence = plan.sequence;
  out.path = plan.path;
  out.what = TextOf(plan);
  out.kind = plan.kind;
  out.dtype = plan.dtype;
  out.op = plan.op;
  out.prescale = plan.prescale;
  out.postscale = plan.postscale;
  out.members = run.members;
  out.self = PositionOf(run, self);
  out.locked = run.entry != PlanEntry::kPlanned;
  out.is_void = run.entry == PlanEntry::kVoid;
  if (out.is_void) return out;
  if (Traits(plan.kind).has_root()) out.root = PositionOf(run, plan.root);
  TFRING_CHECK(calls.size() == plan.items.size()) << "plan " << plan.sequence;
  for (size_t i = 0; i < calls.size(); ++i) {
    const size_t first = out.buffers.size();
    if (Traits(plan.kind).allocates_output()) {
      TFRING_RETURN_IF_ERROR(AddAllocated(plan.items[i], calls[i], &out));
    } else {
      AddGiven(calls[i]->call.buffers, &out);
    }
    AddDeviceCall(calls[i]->call, first, &out);
  }
  return out;
}

}  // namespace tfring
