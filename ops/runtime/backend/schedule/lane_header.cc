#include "ops/runtime/backend/schedule/lane_header.h"

namespace tfring {
namespace {

constexpr int kBytesBits = 48;
constexpr uint64_t kBytesMask = (uint64_t{1} << kBytesBits) - 1;

// Raise this with each change of the streams' format, so that two builds of one version notice it.
constexpr uint32_t kStreamFormat = 2;

uint64_t Checksum16(const char* text) {
  uint32_t hash = 2166136261u ^ kStreamFormat;  // FNV-1a
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<uint8_t>(*text)) * 16777619u;
  return (hash ^ (hash >> 16)) & 0xffff;
}

std::string Text(const LaneHeader& header) {
  return "plan " + std::to_string(header.sequence) + " with " +
         std::to_string(header.content & kBytesMask) + " bytes";
}

}  // namespace

LaneHeader MakeLaneHeader(uint64_t sequence, int64_t bytes, const char* algorithm) {
  return {sequence, (static_cast<uint64_t>(bytes) & kBytesMask) | Checksum16(algorithm)
                                                                      << kBytesBits};
}

int64_t LeadBytes(int64_t data_bytes) {
  const auto header = static_cast<int64_t>(sizeof(LaneHeader));
  return header + data_bytes <= kMaxLeadBytes ? header : kMaxLeadBytes;
}

std::string LaneMismatch(const LaneHeader& expected, const LaneHeader& got, const char* algorithm) {
  if (got.sequence == expected.sequence && got.content == expected.content) return "";
  const bool other = (got.content ^ expected.content) >> kBytesBits != 0;
  return Text(got) + (other ? ", by another algorithm," : "") + " came where " + Text(expected) +
         ", by " + algorithm +
         ", was expected. The ranks do not run the same collective: this is a defect of tfring, or "
         "memory was overwritten; nothing that was received is used";
}

}  // namespace tfring
