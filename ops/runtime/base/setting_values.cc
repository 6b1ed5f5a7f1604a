#include "ops/runtime/base/setting_values.h"

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>

namespace tfring {
namespace {

constexpr const char* kLevels[] = {"trace", "debug", "info", "warning", "error"};
constexpr const char* kLogFormats[] = {"text", "json"};
// In the order of CpuOperations.
constexpr const char* kCpuOperations[] = {"auto", "shm", "tcp", "mpi"};
// In the order of GpuOperations.
constexpr const char* kGpuOperations[] = {"auto", "nccl", "host"};
// In the order of Hierarchy.
constexpr const char* kHierarchies[] = {"auto", "0", "1"};
// In the order of ValueAction.
constexpr const char* kValueActions[] = {"0", "warn", "error"};

std::string Lower(const std::string& text) {
  std::string lower = text;
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// The value whose name, in lower case, stands at its place in `names`.
template <typename Value, size_t kCount>
std::optional<Value> ValueNamed(const char* const (&names)[kCount], const std::string& lower) {
  for (size_t i = 0; i < kCount; ++i) {
    if (lower == names[i]) return static_cast<Value>(i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<bool> ParseFlag(const std::string& text) {
  const std::string lower = Lower(text);
  if (lower == "1" || lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "0" || lower == "false" || lower == "no" || lower == "off") return false;
  return std::nullopt;
}

std::optional<int64_t> ParseInteger(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || errno != 0 || end != text.c_str() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> ParseSeconds(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || errno != 0 || end != text.c_str() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> ParseLevel(const std::string& text) {
  const std::string lower = Lower(text);
  for (int64_t level = 0; level < 5; ++level) {
    if (lower == kLevels[level]) return level;
  }
  if (lower == "fatal") return 4;  // Horovod's name for what is above error
  return ParseInteger(text);
}

std::optional<bool> ParseLogFormat(const std::string& text) {
  const std::string lower = Lower(text);
  if (lower == kLogFormats[0]) return false;
  if (lower == kLogFormats[1]) return true;
  return std::nullopt;
}

// Horovod's HOROVOD_CPU_OPERATIONS has Gloo, which is what goes over TCP there, and oneCCL.
std::optional<CpuOperations> ParseCpuOperations(const std::string& text) {
  const std::string lower = Lower(text);
  if (lower == "gloo" || lower == "ccl") return CpuOperations::kAuto;
  return ValueNamed<CpuOperations>(kCpuOperations, lower);
}

// Horovod's HOROVOD_GPU_OPERATIONS has MPI and Gloo besides NCCL: there, too, the host carries
// them.
std::optional<GpuOperations> ParseGpuOperations(const std::string& text) {
  const std::string lower = Lower(text);
  if (lower == "mpi" || lower == "gloo") return GpuOperations::kHost;
  return ValueNamed<GpuOperations>(kGpuOperations, lower);
}

std::optional<Hierarchy> ParseHierarchy(const std::string& text) {
  const std::optional<bool> flag = ParseFlag(text);
  if (flag) return *flag ? Hierarchy::kAlways : Hierarchy::kNever;
  if (Lower(text) == "auto") return Hierarchy::kAuto;
  return std::nullopt;
}

std::optional<ValueAction> ParseValueAction(const std::string& text) {
  const std::optional<bool> flag = ParseFlag(text);
  if (flag) return *flag ? ValueAction::kWarn : ValueAction::kIgnore;
  const std::string lower = Lower(text);
  if (lower == "warn") return ValueAction::kWarn;
  if (lower == "error") return ValueAction::kError;
  return std::nullopt;
}

std::optional<DataType> ParseWireDtype(const std::string& text) {
  const std::string lower = Lower(text);
  for (DataType dtype : {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16}) {
    if (lower == DataTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

const char* LevelName(int64_t level) { return kLevels[level]; }
const char* LogFormatName(bool json) { return kLogFormats[json ? 1 : 0]; }
const char* NameOf(CpuOperations operations) {
  return kCpuOperations[static_cast<size_t>(operations)];
}
const char* NameOf(GpuOperations operations) {
  return kGpuOperations[static_cast<size_t>(operations)];
}
const char* NameOf(Hierarchy hierarchy) { return kHierarchies[static_cast<size_t>(hierarchy)]; }
const char* NameOf(ValueAction action) { return kValueActions[static_cast<size_t>(action)]; }

}  // namespace tfring
