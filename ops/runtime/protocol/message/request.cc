#include "ops/runtime/protocol/message/request.h"

#include <algorithm>
#include <utility>

namespace tfring {

bool operator==(const Request& a, const Request& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.prescale == b.prescale &&
         a.postscale == b.postscale && a.process_set == b.process_set && a.root == b.root &&
         a.peer == b.peer && a.layout_hash == b.layout_hash && a.path == b.path &&
         a.group == b.group && a.shapes == b.shapes && a.splits == b.splits &&
         a.set_ranks == b.set_ranks && a.removed_set == b.removed_set && a.refusal == b.refusal &&
         a.unnamed == b.unnamed && a.in_run == b.in_run && a.call_site == b.call_site &&
         a.name == b.name;
}

std::string Describe(const Request& request) {
  return std::string(CollectiveKindName(request.kind)) + " of tensor '" + request.name + "'";
}

bool CallSiteCounts(const Request& request) {
  const KindTraits& kind = Traits(request.kind);
  return request.unnamed && !request.call_site.empty() && kind.input == Who::kAll &&
         kind.output == Who::kAll;
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

std::vector<Rank> RanksOf(const Request& request, const std::vector<Rank>& members) {
  if (request.kind != CollectiveKind::kSendRecv) return members;
  return {std::min(request.root, request.peer), std::max(request.root, request.peer)};
}

std::vector<int64_t> RowsByMember(const Request& request, size_t members) {
  if (!request.splits.empty()) return request.splits;
  return std::vector<int64_t>(members, request.shapes[0][0] / static_cast<int64_t>(members));
}

void Refuse(const Status& why, Request* request) {
  Request refused;
  refused.name = std::move(request->name);
  refused.kind = request->kind;
  refused.process_set = request->process_set;
  refused.root = request->root;
  refused.peer = request->peer;
  refused.unnamed = request->unnamed;
  refused.in_run = request->in_run;
  refused.call_site = std::move(request->call_site);
  refused.refusal = why.message().substr(0, kMaxRefusalBytes);
  if (refused.refusal.empty()) refused.refusal = "the call is invalid";
  *request = std::move(refused);
}

}  // namespace tfring
