#include "ops/runtime/process/output_layout.h"

#include <string>
#include <utility>

namespace tfring {
namespace {

constexpr int64_t kTooLarge = INT64_MAX;  // more bytes than can be counted

// Rows as bytes, and their sums. False if they make no sense or overflow.
struct Blocks {
  std::vector<int64_t> bytes;
  int64_t total_rows = 0;
  int64_t total_bytes = 0;

  bool Add(int64_t rows, int64_t row_bytes) {
    int64_t block = 0;
    const bool countable =
        rows == 0 || (row_bytes != kTooLarge && !__builtin_mul_overflow(rows, row_bytes, &block));
    if (rows < 0 || !countable || __builtin_add_overflow(total_bytes, block, &total_bytes) ||
        __builtin_add_overflow(total_rows, rows, &total_rows)) {
      return false;
    }
    bytes.push_back(block);
    return true;
  }

  bool AddAll(const int64_t* rows, size_t count, size_t stride, int64_t row_bytes) {
    for (size_t m = 0; m < count; ++m) {
      if (!Add(rows[m * stride], row_bytes)) return false;
    }
    return true;
  }
};

// False for a scalar. Rows that are too large are right where there are none.
bool RowBytes(const Shape& shape, DataType dtype, int64_t* bytes) {
  if (shape.empty()) return false;
  Shape row = shape;
  row[0] = DataTypeSize(dtype);
  *bytes = NumElements(row);
  return true;
}

void SetRows(int64_t rows, int64_t bytes, OutputLayout* out) {
  out->shape[0] = rows;
  out->bytes = bytes;
}

// Of allgather and gather.
bool Gathered(const LayoutRequest& request, const PlanItem& item, size_t tensor, int64_t row_bytes,
              OutputLayout* out) {
  const size_t begin = tensor * request.members;
  if (item.negotiated_values.size() < begin + request.members) return false;
  if (item.negotiated_values[begin + request.self] != out->shape[0]) return false;
  Blocks blocks;
  if (!blocks.AddAll(item.negotiated_values.data() + begin, request.members, 1, row_bytes))
    return false;
  const bool receives = request.kind == CollectiveKind::kAllgather || request.self == request.root;
  SetRows(receives ? blocks.total_rows : 0, receives ? blocks.total_bytes : 0, out);
  out->blocks = std::move(blocks.bytes);
  return true;
}

// Of reducescatter: the first (rows % members) get one row more.
bool Scattered(const LayoutRequest& request, int64_t row_bytes, OutputLayout* out) {
  const auto members = static_cast<int64_t>(request.members);
  const int64_t rows = out->shape[0];
  const auto self = static_cast<int64_t>(request.self);
  if (members <= 0 || self >= members) return false;
  const int64_t share = rows / members, rest = rows % members;
  Blocks blocks;
  for (int64_t m = 0; m < members; ++m) {
    if (!blocks.Add(share + (m < rest ? 1 : 0), row_bytes)) return false;
  }
  SetRows(share + (self < rest ? 1 : 0), blocks.bytes[request.self], out);
  out->blocks = std::move(blocks.bytes);
  return true;
}

// Of alltoall: [s * members + d] are the rows from s to d.
bool Exchanged(const LayoutRequest& request, const PlanItem& item, int64_t row_bytes,
               OutputLayout* out) {
  const size_t members = request.members;
  if (item.negotiated_values.size() != members * members) return false;
  const int64_t* matrix = item.negotiated_values.data();
  Blocks sent, received;
  if (!sent.AddAll(matrix + request.self * members, members, 1, row_bytes) ||
      !received.AddAll(matrix + request.self, members, members, row_bytes) ||
      sent.total_rows != out->shape[0]) {
    return false;
  }
  for (size_t s = 0; s < members; ++s) out->rows.push_back(matrix[s * members + request.self]);
  SetRows(received.total_rows, received.total_bytes, out);
  out->blocks = std::move(received.bytes);
  out->sends = std::move(sent.bytes);
  return true;
}

// Of scatter: the rows for each member.
bool Dealt(const LayoutRequest& request, const PlanItem& item, int64_t row_bytes,
           OutputLayout* out) {
  if (item.negotiated_values.size() != request.members) return false;
  Blocks blocks;
  if (!blocks.AddAll(item.negotiated_values.data(), request.members, 1, row_bytes)) return false;
  if (request.self == request.root && blocks.total_rows != out->shape[0]) return false;
  SetRows(item.negotiated_values[request.self], blocks.bytes[request.self], out);
  out->blocks = std::move(blocks.bytes);
  return true;
}

// Of send/recv: the plan has the whole shape. The receiver may have left it open.
bool Handed(const LayoutRequest& request, const PlanItem& item, const Shape* own,
            OutputLayout* out) {
  out->shape = item.negotiated_values;
  for (size_t d = 0; d < out->shape.size(); ++d) {
    const bool fits = own == nullptr || (own->size() == out->shape.size() &&
                                         ((*own)[d] == out->shape[d] || (*own)[d] == -1));
    if (out->shape[d] < 0 || !fits) return false;
  }
  if (own != nullptr && own->size() != out->shape.size()) return false;
  const int64_t elements = NumElements(out->shape);
  return elements != INT64_MAX &&
         !__builtin_mul_overflow(elements, DataTypeSize(request.dtype), &out->bytes);
}

bool Lay(const LayoutRequest& request, const PlanItem& item, size_t tensor, const Shape* own,
         OutputLayout* out) {
  if (request.kind == CollectiveKind::kSendRecv) return Handed(request, item, own, out);
  int64_t row_bytes = 0;
  if (own == nullptr || !RowBytes(*own, request.dtype, &row_bytes)) return false;
  out->shape = *own;
  switch (request.kind) {
    case CollectiveKind::kAllgather:
    case CollectiveKind::kGather:
      return Gathered(request, item, tensor, row_bytes, out);
    case CollectiveKind::kReducescatter:
      return Scattered(request, row_bytes, out);
    case CollectiveKind::kAlltoall:
      return Exchanged(request, item, row_bytes, out);
    case CollectiveKind::kScatter:
      return Dealt(request, item, row_bytes, out);
    default:
      return false;
  }
}

}  // namespace

Result<OutputLayout> LayoutOf(const LayoutRequest& request, const PlanItem& item, size_t tensor,
                              const Shape* own) {
  OutputLayout layout;
  if (Lay(request, item, tensor, own, &layout)) return layout;
  return Internal("the plan for " + std::string(CollectiveKindName(request.kind)) + " '" +
                  item.name + "' does not fit what this rank submitted");
}

}  // namespace tfring
