#include "ops/runtime/base/config.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tfring {
namespace {

// Each overload stores `value` in a field, and returns whether the value fits it.
bool Store(const SettingValue& value, int64_t* field) {
  const auto* number = std::get_if<int64_t>(&value);
  if (number != nullptr) *field = *number;
  return number != nullptr;
}

bool Store(const SettingValue& value, bool* field) {
  const auto* number = std::get_if<int64_t>(&value);
  if (number != nullptr) *field = *number != 0;
  return number != nullptr;
}

bool Store(const SettingValue& value, std::string* field) {
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr) *field = *text;
  return text != nullptr;
}

template <typename T>
bool Store(const SettingValue& value, T* field, const std::vector<T>& choices) {
  const auto* index = std::get_if<int64_t>(&value);
  if (index == nullptr || *index < 0 || *index >= static_cast<int64_t>(choices.size())) {
    return false;
  }
  *field = choices[static_cast<size_t>(*index)];
  return true;
}

}  // namespace

Result<Config> MakeConfig(const SettingValues& values) {
  Config config;
  std::string wrong;  // a setting whose value does not fit
  VisitSettings(&config, [&](const char* name, auto* field, const auto&... choices) {
    const auto given = values.find(name);
    if (given == values.end()) return;
    if (!Store(given->second, field, choices...)) wrong = name;
    config.fixed.emplace_back(name);
  });
  if (!wrong.empty()) return InvalidArgument("TFRING_" + wrong + " has a value of a wrong type");
  for (const auto& [name, value] : values) {
    if (std::count(config.fixed.begin(), config.fixed.end(), name) == 0) {
      return InvalidArgument("TFRING_" + name + " is not a setting of the runtime");
    }
  }
  return config;
}

}  // namespace tfring
