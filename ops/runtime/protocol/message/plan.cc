#include "ops/runtime/protocol/message/plan.h"

namespace tfring {

Plan PlanFor(const Request& request) {
  Plan plan;
  plan.process_set = request.process_set;
  plan.kind = request.kind;
  plan.dtype = request.dtype;
  if (Traits(request.kind).reduces) {
    plan.op = request.op;
    plan.prescale = request.prescale;
    plan.postscale = request.postscale;
  }
  if (Traits(request.kind).has_root()) plan.root = request.root;
  if (request.kind == CollectiveKind::kSendRecv) plan.peer = request.peer;
  return plan;
}

bool SameCollective(const Plan& a, const Plan& b) {
  return a.process_set == b.process_set && a.kind == b.kind && a.dtype == b.dtype && a.op == b.op &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.root == b.root &&
         a.peer == b.peer;
}

}  // namespace tfring
