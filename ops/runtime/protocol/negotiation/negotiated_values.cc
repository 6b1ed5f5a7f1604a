#include "ops/runtime/protocol/negotiation/negotiated_values.h"

#include <algorithm>

namespace tfring {
namespace {

size_t PositionOf(const std::vector<Rank>& members, Rank rank) {
  return static_cast<size_t>(std::lower_bound(members.begin(), members.end(), rank) -
                             members.begin());
}

// Sums of the rows and of the bytes of blocks of rows.
class Bytes {
 public:
  // False if `rows` is negative or a sum overflows; `row` is the size of one row (see RowBytes).
  bool Add(int64_t row, int64_t rows) {
    int64_t bytes = 0;
    return rows >= 0 && (rows == 0 || row != INT64_MAX) &&
           !__builtin_mul_overflow(rows, row, &bytes) &&
           !__builtin_add_overflow(total_, bytes, &total_) &&
           !__builtin_add_overflow(rows_, rows, &rows_);
  }

 private:
  int64_t total_ = 0;
  int64_t rows_ = 0;
};

bool GatherCountable(const std::vector<int64_t>& values, size_t members, const Request& request) {
  Bytes all;
  for (size_t t = 0; t < request.shapes.size(); ++t) {
    const int64_t row = RowBytes(request.shapes[t], request.dtype);
    for (size_t m = 0; m < members; ++m) {
      if (!all.Add(row, values[t * members + m])) return false;
    }
  }
  return true;
}

bool GatherFits(const std::vector<int64_t>& values, size_t members, size_t self,
                const Request& request) {
  for (size_t t = 0; t < request.shapes.size(); ++t) {
    if (values[t * members + self] != request.shapes[t][0]) return false;
  }
  return GatherCountable(values, members, request);
}

// Of the matrix of an alltoall: the rows that one member receives.
bool ColumnCountable(const std::vector<int64_t>& values, size_t members, size_t column,
                     int64_t row) {
  Bytes received;
  for (size_t m = 0; m < members; ++m) {
    if (!received.Add(row, values[m * members + column])) return false;
  }
  return true;
}

bool AlltoallFits(const std::vector<int64_t>& values, size_t members, size_t self,
                  const Request& request) {
  const std::vector<int64_t> sent = RowsByMember(request, members);
  if (!std::equal(sent.begin(), sent.end(), values.begin())) return false;
  if (values[members + self] != sent[self]) return false;
  Bytes received;
  const int64_t row = RowBytes(request.shapes[0], request.dtype);
  return std::all_of(values.begin() + static_cast<std::ptrdiff_t>(members), values.end(),
                     [&](int64_t rows) { return received.Add(row, rows); });
}

bool ScatterFits(const std::vector<int64_t>& values, Rank self, const Request& request) {
  if (self == request.root && values != RowsByMember(request, values.size())) return false;
  Bytes all;
  const int64_t row = RowBytes(request.shapes[0], request.dtype);
  return std::all_of(values.begin(), values.end(),
                     [&](int64_t rows) { return all.Add(row, rows); });
}

bool SentShapeFits(const Shape& shape, Rank self, const Request& request) {
  if (self == request.root) return shape == request.shapes[0];
  int64_t bytes = 0;
  const int64_t elements = NumElements(shape);
  if (std::any_of(shape.begin(), shape.end(), [](int64_t dim) { return dim < 0; }) ||
      elements == INT64_MAX ||
      __builtin_mul_overflow(elements, DataTypeSize(request.dtype), &bytes)) {
    return false;
  }
  if (request.shapes.empty()) return true;
  const Shape& expected = request.shapes[0];
  return std::equal(shape.begin(), shape.end(), expected.begin(), expected.end(),
                    [](int64_t sent, int64_t wanted) { return wanted == -1 || sent == wanted; });
}

// {id, ranks...} of a process set that is added.
bool NewSetFits(const std::vector<int64_t>& values, const Request& request) {
  return !values.empty() && values[0] > kGlobalProcessSet && values[0] <= INT32_MAX &&
         std::equal(values.begin() + 1, values.end(), request.set_ranks.begin(),
                    request.set_ranks.end());
}

}  // namespace

size_t NegotiatedValuesCount(const Request& request, size_t members) {
  switch (request.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      return request.shapes.size() * members;
    case CollectiveKind::kAlltoall:
      return 2 * members;
    case CollectiveKind::kScatter:
      return members;
    default:
      return 0;
  }
}

std::vector<int64_t> ValuesForMember(CollectiveKind kind, const std::vector<int64_t>& values,
                                     size_t members, size_t member) {
  if (kind != CollectiveKind::kAlltoall) return values;
  std::vector<int64_t> own;
  own.reserve(2 * members);
  for (size_t to = 0; to < members; ++to) own.push_back(values[member * members + to]);
  for (size_t from = 0; from < members; ++from) own.push_back(values[from * members + member]);
  return own;
}

std::vector<int64_t> NegotiatedValuesOf(const std::vector<Rank>& members,
                                        const std::vector<const Request*>& requests) {
  const Request& first = *requests[0];
  const size_t count = members.size();
  std::vector<int64_t> values;
  switch (first.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      for (size_t t = 0; t < first.shapes.size(); ++t) {
        for (const Request* request : requests) values.push_back(request->shapes[t][0]);
      }
      break;
    case CollectiveKind::kAlltoall:
      values.reserve(count * count);
      for (const Request* request : requests) {
        for (int64_t rows : RowsByMember(*request, count)) values.push_back(rows);
      }
      break;
    case CollectiveKind::kScatter:
      return RowsByMember(*requests[PositionOf(members, first.root)], count);
    case CollectiveKind::kSendRecv:
      return requests[PositionOf(members, first.root)]->shapes[0];
    default:
      break;  // the kind has none
  }
  return values;
}

bool NegotiatedValuesCountable(const std::vector<int64_t>& negotiated_values, size_t members,
                               const Request& request) {
  switch (request.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      return GatherCountable(negotiated_values, members, request);
    case CollectiveKind::kAlltoall: {
      const int64_t row = RowBytes(request.shapes[0], request.dtype);
      for (size_t m = 0; m < members; ++m) {
        if (!ColumnCountable(negotiated_values, members, m, row)) return false;
      }
      return true;
    }
    default:
      return true;  // no member receives more than one rank has
  }
}

bool NegotiatedValuesFit(const std::vector<int64_t>& negotiated_values,
                         const std::vector<Rank>& members, Rank self, const Request& request) {
  const std::vector<int64_t>& values = negotiated_values;
  const size_t count = members.size();
  const bool counted = values.size() == NegotiatedValuesCount(request, count);
  switch (request.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      return counted && GatherFits(values, count, PositionOf(members, self), request);
    case CollectiveKind::kAlltoall:
      return counted && AlltoallFits(values, count, PositionOf(members, self), request);
    case CollectiveKind::kScatter:
      return counted && ScatterFits(values, self, request);
    case CollectiveKind::kSendRecv:
      return SentShapeFits(values, self, request);
    case CollectiveKind::kJoin:
      return values.size() == 1 && std::count(members.begin(), members.end(), values[0]) == 1;
    case CollectiveKind::kAddProcessSet:
      return NewSetFits(values, request);
    case CollectiveKind::kRemoveProcessSet:
      return values == std::vector<int64_t>{request.removed_set};
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kReduce:
      return values.empty();
  }
  return false;
}

}  // namespace tfring
