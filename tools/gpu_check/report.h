#ifndef TFRING_TOOLS_GPU_CHECK_REPORT_H_
#define TFRING_TOOLS_GPU_CHECK_REPORT_H_

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "ops/runtime/base/status.h"

namespace tfring::gpu_check {

// One line of JSON, filled by a step.
class Report {
 public:
  void Add(const std::string& name, double value) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.6g", value);
    Raw(name, text);
  }
  void Add(const std::string& name, const std::string& value) {
    std::string text = "\"";
    for (char c : value) {
      if (c == '"' || c == '\\') text += '\\';
      text += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    Raw(name, text + "\"");
  }
  void Raw(const std::string& name, const std::string& json) {
    text_ += (text_.empty() ? "" : ", ") + ("\"" + name + "\": ") + json;
  }
  std::string Line() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

// Ends the step with the text.
inline void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}
inline void Require(bool condition, const std::string& otherwise) {
  if (!condition) throw std::runtime_error(otherwise);
}
template <typename T>
T Require(Result<T> result) {
  Require(result.status());
  return std::move(*result);
}

inline double Seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace tfring::gpu_check

#endif  // TFRING_TOOLS_GPU_CHECK_REPORT_H_
