#include "ops/runtime/process/output_layout.h"

#include <numeric>
#include <utility>

#include "ops/runtime/base/check.h"

namespace tfring {
namespace {

using Values = std::vector<int64_t>;

int64_t Sum(const Values& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// `count` values from `first` on.
Values Slice(const Values& values, size_t first, size_t count) {
  TFRING_CHECK(count > 0 && first + count <= values.size())
      << "a plan has " << values.size() << " negotiated values";
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
  return Values(begin, begin + static_cast<std::ptrdiff_t>(count));
}

Values RowsToBytes(Values rows, int64_t row_bytes) {
  for (int64_t& value : rows) value *= row_bytes;
  return rows;
}

// Of reducescatter: the first (rows % members) get one row more.
Values EqualRows(int64_t rows, size_t members) {
  const auto count = static_cast<int64_t>(members);
  Values shares(members, rows / count);
  for (int64_t m = 0; m < rows % count; ++m) ++shares[static_cast<size_t>(m)];
  return shares;
}

}  // namespace

OutputLayout LayoutOf(const LayoutRequest& request, const std::vector<int64_t>& values,
                      size_t tensor, const Shape& own) {
  OutputLayout out;
  if (request.kind == CollectiveKind::kSendRecv) {
    out.shape = values;
    out.bytes = NumElements(out.shape) * DataTypeSize(request.dtype);
    return out;
  }
  const size_t members = request.members;
  const int64_t row_bytes = RowBytes(own, request.dtype);
  Values rows;  // of each block
  int64_t output_rows = 0;
  switch (request.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      rows = Slice(values, tensor * members, members);
      if (request.kind == CollectiveKind::kAllgather || request.self == request.root) {
        output_rows = Sum(rows);
      }
      break;
    case CollectiveKind::kReducescatter:
      rows = EqualRows(own[0], members);
      output_rows = rows[request.self];
      break;
    case CollectiveKind::kScatter:
      rows = Slice(values, 0, members);
      output_rows = rows[request.self];
      break;
    case CollectiveKind::kAlltoall:  // the rows for each member, then those from each
      out.sends = RowsToBytes(Slice(values, 0, members), row_bytes);
      rows = Slice(values, members, members);
      out.rows = rows;
      output_rows = Sum(rows);
      break;
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
    case CollectiveKind::kAddProcessSet:
    case CollectiveKind::kRemoveProcessSet:
      TFRING_CHECK(false) << CollectiveKindName(request.kind) << " has no rows to lay out";
  }
  out.shape = own;
  out.shape[0] = output_rows;
  out.bytes = output_rows * row_bytes;
  out.blocks = RowsToBytes(std::move(rows), row_bytes);
  return out;
}

}  // namespace tfring
