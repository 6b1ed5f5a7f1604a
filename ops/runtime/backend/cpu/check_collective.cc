#include <string>

#include "ops/runtime/backend/cpu/select.h"

namespace tfring {
namespace {

Status Wrong(const Collective& collective, const std::string& what) {
  return Internal(std::string(CollectiveKindName(collective.kind)) + " number " +
                  std::to_string(collective.sequence) + ": " + what);
}

Status CheckBlocks(const Collective& collective, size_t tensor) {
  const TensorBuffer& buffer = collective.buffers[tensor];
  const std::vector<int64_t>& blocks = collective.block_bytes[tensor];
  const std::string where = "tensor " + std::to_string(tensor);
  if (blocks.size() != collective.members.size()) {
    return Wrong(collective, where + " has " + std::to_string(blocks.size()) + " blocks for " +
                                 std::to_string(collective.members.size()) + " ranks");
  }
  int64_t total = 0;
  for (int64_t block : blocks) {
    if (block < 0) return Wrong(collective, where + " has a block of negative size");
    total += block;
  }
  if (total != buffer.output_bytes || blocks[collective.self] != buffer.input_bytes) {
    return Wrong(collective, where + " has blocks of " + std::to_string(total) +
                                 " bytes (own: " + std::to_string(blocks[collective.self]) +
                                 ") for an output of " + std::to_string(buffer.output_bytes) +
                                 " and an input of " + std::to_string(buffer.input_bytes));
  }
  return OkStatus();
}

Status CheckBuffer(const Collective& collective, size_t tensor) {
  const TensorBuffer& buffer = collective.buffers[tensor];
  const std::string where = "tensor " + std::to_string(tensor);
  const bool reads_input =
      collective.kind != CollectiveKind::kBroadcast || collective.self == collective.root;
  if (buffer.input_bytes < 0 || buffer.output_bytes < 0) {
    return Wrong(collective, where + " has a negative size");
  }
  if ((buffer.output_bytes > 0 && buffer.output == nullptr) ||
      (reads_input && buffer.input_bytes > 0 && buffer.input == nullptr)) {
    return Wrong(collective, where + " has no memory");
  }
  if (collective.kind == CollectiveKind::kAllgather) return CheckBlocks(collective, tensor);
  if (reads_input && buffer.input_bytes != buffer.output_bytes) {
    return Wrong(collective, where + " has an input of " + std::to_string(buffer.input_bytes) +
                                 " bytes and an output of " + std::to_string(buffer.output_bytes));
  }
  if (buffer.output_bytes % DataTypeSize(collective.dtype) != 0) {
    return Wrong(collective, where + " has " + std::to_string(buffer.output_bytes) +
                                 " bytes, no multiple of the size of " +
                                 DataTypeName(collective.dtype));
  }
  return OkStatus();
}

}  // namespace

Status CheckCollective(const Collective& collective) {
  const int size = static_cast<int>(collective.members.size());
  if (static_cast<int>(collective.kind) >= kNumCollectiveKinds) {
    return Internal("unknown kind of collective");
  }
  if (static_cast<int>(collective.dtype) >= kNumDataTypes) {
    return Wrong(collective, "unknown dtype");
  }
  if (collective.self < 0 || collective.self >= size) {
    return Wrong(collective, "position " + std::to_string(collective.self) + " is not one of " +
                                 std::to_string(size));
  }
  for (int i = 1; i < size; ++i) {
    if (collective.members[i] <= collective.members[i - 1]) {
      return Wrong(collective, "the members are not in ascending order");
    }
  }
  if (collective.kind == CollectiveKind::kBroadcast &&
      (collective.root < 0 || collective.root >= size)) {
    return Wrong(collective, "root " + std::to_string(collective.root) + " is not one of " +
                                 std::to_string(size) + " members");
  }
  if (collective.kind == CollectiveKind::kAllgather &&
      collective.block_bytes.size() != collective.buffers.size()) {
    return Wrong(collective, std::to_string(collective.block_bytes.size()) +
                                 " lists of blocks for " +
                                 std::to_string(collective.buffers.size()) + " tensors");
  }
  for (size_t tensor = 0; tensor < collective.buffers.size(); ++tensor) {
    TFRING_RETURN_IF_ERROR(CheckBuffer(collective, tensor));
  }
  return OkStatus();
}

}  // namespace tfring
