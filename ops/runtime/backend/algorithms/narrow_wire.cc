#include "ops/runtime/backend/algorithms/narrow_wire.h"

namespace tfring {

DataType WireOf(const Collective& collective, const Config& config, const HostLayout& layout) {
  const bool sum = collective.op == ReduceOp::kSum || collective.op == ReduceOp::kAverage;
  const bool narrow = collective.kind == CollectiveKind::kAllreduce && sum &&
                      collective.dtype == DataType::kFloat32 && layout.hosts() > 1;
  return narrow ? config.wire_dtype : DataType::kFloat32;
}

void NarrowBetweenHosts(const HostLayout& layout, int self, DataType wire, Schedule* schedule) {
  schedule->wire = wire;
  const int here = layout.HostOf(self);
  for (Step& step : schedule->steps) {
    step.narrow = IsRemote(step) && layout.HostOf(step.peer) != here;
    if (step.finish && !schedule->rounds_parts) step.round = true;
  }
}

}  // namespace tfring
