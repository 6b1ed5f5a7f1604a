#include "ops/runtime/backend/algorithms/canonical_sum.h"

namespace tfring {

int AppendCanonicalSum(ScheduleBuilder* builder, std::vector<Contribution> contributions, Range dst,
                       int before_output, bool finish) {
  std::vector<Contribution> level = std::move(contributions);
  int last = kNoStep;
  while (level.size() > 1) {
    const bool root = level.size() == 2;
    std::vector<Contribution> above;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      const Contribution& left = level[i];
      const Contribution& right = level[i + 1];
      Range into = left.range.space == Space::kScratch ? left.range : right.range;
      if (root) into = dst;
      last = builder->Reduce(left.range, right.range, into, {left.members, right.members},
                             root && finish,
                             {left.ready, right.ready, root ? before_output : kNoStep});
      above.push_back({into, last, left.members + right.members});
    }
    if (level.size() % 2 == 1) above.push_back(level.back());
    level = std::move(above);
  }
  return last;
}

}  // namespace tfring
