#ifndef TFRING_OPS_RUNTIME_BASE_CONFIG_H_
#define TFRING_OPS_RUNTIME_BASE_CONFIG_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "ops/runtime/base/config_table.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"

namespace tfring {

// A setting as Python gives it, which has checked its bounds: a number, nanoseconds, the index of a
// choice, or a path.
using SettingValue = std::variant<int64_t, std::string>;
using SettingValues = std::map<std::string, SettingValue>;

// Returns the defaults with the given values in their place. InvalidArgument where a name is
// unknown or a value is of the wrong type.
TFRING_EXPORT Result<Config> MakeConfig(const SettingValues& values);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_CONFIG_H_
