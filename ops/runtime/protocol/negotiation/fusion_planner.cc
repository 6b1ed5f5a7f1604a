#include "ops/runtime/protocol/negotiation/fusion_planner.h"

#include <utility>

namespace tfring {
namespace {

// Bounds the frame of one plan, whatever the tensors hold.
constexpr size_t kMaxItems = 4096;

}  // namespace

FusionPlanner::FusionPlanner(const Config& config)
    : threshold_(config.fusion_threshold_bytes),
      groups_alone_(config.disable_group_fusion),
      deterministic_(config.deterministic) {}

bool FusionPlanner::Alone(const Request& request, DataPath path) const {
  if (threshold_ <= 0 || (request.group && groups_alone_)) return true;
  if (!Traits(request.kind).fuses) return true;
  // What Adasum makes of a tensor must not depend on what it travels with. The bits of NCCL's sums
  // do depend on that.
  return Traits(request.kind).reduces &&
         (request.op == ReduceOp::kAdasum || (deterministic_ && path == DataPath::kDevice));
}

void FusionPlanner::Add(uint64_t handle, const Request& request, const std::vector<Rank>& absent,
                        DataPath path) {
  const bool alone = Alone(request, path);
  const int64_t bytes = alone ? 0 : TotalBytes(request);
  if (alone || bytes > threshold_) {
    batches_.push_back({{handle}, bytes, false, {}});
    return;
  }
  const bool reduces = Traits(request.kind).reduces;
  const FusionKey key(request.process_set, request.kind, request.dtype,
                      reduces ? request.op : ReduceOp::kSum, reduces ? request.prescale : 1.0,
                      reduces ? request.postscale : 1.0,
                      Traits(request.kind).has_root() ? request.root : 0, path, absent);
  Batch*& open = open_[key];
  if (open == nullptr || bytes > threshold_ - open->bytes || open->handles.size() >= kMaxItems) {
    if (open != nullptr) open->open = false;
    batches_.push_back({{}, 0, true, key});
    open = &batches_.back();
  }
  open->handles.push_back(handle);
  open->bytes += bytes;
}

std::vector<uint64_t> FusionPlanner::Take() {
  if (batches_.empty()) return {};
  Batch& batch = batches_.front();
  if (batch.open) open_.erase(batch.key);
  std::vector<uint64_t> handles = std::move(batch.handles);
  batches_.pop_front();
  return handles;
}

}  // namespace tfring
