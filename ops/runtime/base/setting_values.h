#ifndef TFRING_OPS_RUNTIME_BASE_SETTING_VALUES_H_
#define TFRING_OPS_RUNTIME_BASE_SETTING_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// How values of settings look as text. Parsers return nothing for a text that is no such value, and
// do not distinguish upper from lower case.

std::optional<bool> ParseFlag(const std::string& text);
std::optional<int64_t> ParseInteger(const std::string& text);
std::optional<double> ParseSeconds(const std::string& text);
std::optional<int64_t> ParseLevel(const std::string& text);
// Whether the log is JSON.
std::optional<bool> ParseLogFormat(const std::string& text);
std::optional<CpuOperations> ParseCpuOperations(const std::string& text);
std::optional<GpuOperations> ParseGpuOperations(const std::string& text);
std::optional<Hierarchy> ParseHierarchy(const std::string& text);
std::optional<ValueAction> ParseValueAction(const std::string& text);
std::optional<DataType> ParseWireDtype(const std::string& text);

const char* LevelName(int64_t level);
const char* LogFormatName(bool json);
const char* NameOf(CpuOperations operations);
const char* NameOf(GpuOperations operations);
const char* NameOf(Hierarchy hierarchy);
const char* NameOf(ValueAction action);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_SETTING_VALUES_H_
