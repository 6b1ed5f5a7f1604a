#include "ops/runtime/process/collective_builder.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "ops/runtime/process/output_layout.h"

namespace tfring {
namespace {

int PositionOf(const std::vector<Rank>& members, Rank rank) {
  auto it = std::lower_bound(members.begin(), members.end(), rank);
  return it != members.end() && *it == rank ? static_cast<int>(it - members.begin()) : -1;
}

std::vector<Rank> TakingPart(const PlanRun& run) {
  const Plan& plan = run.plan;
  if (plan.kind == CollectiveKind::kSendRecv) {
    return {std::min(plan.root, plan.peer), std::max(plan.root, plan.peer)};
  }
  if (plan.absent.empty()) return run.members;
  std::vector<Rank> present;
  std::set_difference(run.members.begin(), run.members.end(), plan.absent.begin(),
                      plan.absent.end(), std::back_inserter(present));
  return present;
}

// Sends and does not receive, or receives and does not send.
bool IsSource(const Collective& collective) {
  return collective.kind == CollectiveKind::kSendRecv && collective.self == collective.root;
}
bool ReadsInput(const Collective& collective) {
  const bool rooted =
      collective.kind == CollectiveKind::kSendRecv || collective.kind == CollectiveKind::kScatter;
  return !rooted || collective.self == collective.root;
}

// Memory for the output: the framework's, or, where it has none, scratch.
Status Allocate(const Collective& collective, const std::string& name, int tensor,
                const OutputLayout& layout, RunningCall* call, TensorBuffer* buffer) {
  buffer->output_bytes = layout.bytes;
  Result<void*> memory = call->entry.allocate(tensor, layout.shape);
  if (memory.ok() && (*memory != nullptr || layout.bytes == 0)) {
    buffer->output = *memory;
    return OkStatus();
  }
  call->local_failure =
      memory.ok() ? Internal(std::string(CollectiveKindName(collective.kind)) + " of tensor '" +
                             name + "': no memory for the output " + ShapeString(layout.shape))
                  : memory.status();
  call->scratch.emplace_back(new (std::nothrow) char[static_cast<size_t>(layout.bytes)]);
  buffer->output = call->scratch.back().get();
  return buffer->output == nullptr ? call->local_failure : OkStatus();
}

Status AddLaidOut(const PlanItem& item, RunningCall* call, Collective* out) {
  LayoutRequest request;
  request.kind = out->kind;
  request.dtype = out->dtype;
  request.members = out->members.size();
  request.self = static_cast<size_t>(out->self);
  request.root = static_cast<size_t>(out->root);
  // A receiver that knows no shape has given no tensor.
  const bool open = out->kind == CollectiveKind::kSendRecv && call->shapes.empty();
  const size_t tensors = open ? 1 : call->shapes.size();
  for (size_t t = 0; t < tensors; ++t) {
    Result<OutputLayout> layout = LayoutOf(request, item, t, open ? nullptr : &call->shapes[t]);
    if (!layout.ok()) return layout.status();
    TensorBuffer buffer;
    if (t < call->entry.buffers.size() && ReadsInput(*out)) {
      buffer.input = call->entry.buffers[t].input;
      buffer.input_bytes = call->entry.buffers[t].input_bytes;
    }
    if (!IsSource(*out)) {
      TFRING_RETURN_IF_ERROR(
          Allocate(*out, item.name, static_cast<int>(t), *layout, call, &buffer));
    }
    out->buffers.push_back(buffer);
    if (out->kind == CollectiveKind::kSendRecv) continue;
    out->block_bytes.push_back(std::move(layout->blocks));
    if (out->kind != CollectiveKind::kAlltoall) continue;
    out->send_bytes.push_back(std::move(layout->sends));
    if (call->entry.announce) call->entry.announce(layout->rows);
  }
  return OkStatus();
}

void AddGiven(const std::vector<TensorBuffer>& buffers, Collective* out) {
  for (TensorBuffer buffer : buffers) {
    if (out->kind == CollectiveKind::kReduce && out->self != out->root) {
      buffer.output = nullptr;
      buffer.output_bytes = 0;
    }
    out->buffers.push_back(buffer);
  }
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
  out.members = TakingPart(run);
  out.self = PositionOf(out.members, self);
  if (HasRoot(plan.kind)) out.root = PositionOf(out.members, plan.root);
  if (out.self < 0 || out.root < 0 || calls.size() != plan.items.size()) {
    return Internal("plan " + std::to_string(plan.sequence) + " (" + CollectiveKindName(plan.kind) +
                    ") does not fit the calls of rank " + std::to_string(self));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (AllocatesOutput(plan.kind)) {
      TFRING_RETURN_IF_ERROR(AddLaidOut(plan.items[i], calls[i], &out));
    } else {
      AddGiven(calls[i]->entry.buffers, &out);
    }
  }
  return out;
}

}  // namespace tfring
