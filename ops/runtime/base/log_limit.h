#ifndef TFRING_OPS_RUNTIME_BASE_LOG_LIMIT_H_
#define TFRING_OPS_RUNTIME_BASE_LOG_LIMIT_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/log_format.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// A minute begins with the first line of a text and is this long.
inline constexpr Duration kLogMinute = 60 * kSecond;

struct LogSummary {
  LogLevel level;
  std::string text;
};

// Decides which log lines are written, so that a repeated line does not bury the others. Lines that
// differ only in digits have the same text. The first lines of a text in a minute are written; the
// rest are counted, and at the end of the minute the last one is written with their number. Keeps
// kMaxTexts texts, and drops the one whose minute began first for a new one. Not thread-safe.
class TFRING_EXPORT LogLimiter {
 public:
  static constexpr size_t kMaxTexts = 256;
  static constexpr size_t kMaxKept = 1024;  // bytes of a line that is kept for its summary

  // Whether to write this line, after what is added to `before`.
  bool Admit(LogLevel level, const std::string& text, int64_t per_minute, TimePoint now,
             std::vector<LogSummary>* before);

  // Ends the minutes that are over and appends their summaries.
  void EndMinutes(TimePoint now, std::vector<LogSummary>* summaries);

  // Ends all minutes with lines that were counted.
  void EndAll(TimePoint now, std::vector<LogSummary>* summaries);

  // When the first minute with a summary ends; kNever without one.
  TimePoint next_end() const;

 private:
  struct Repeats {
    TimePoint since = 0;
    int64_t written = 0;
    int64_t counted = 0;
    LogLevel level = LogLevel::kInfo;  // of the last line that was counted
    std::string text;                  // of the same, cut
  };

  // Appends a summary if lines were counted.
  static void Summarize(const Repeats& repeats, TimePoint now, std::vector<LogSummary>* summaries);
  void MakeRoom(TimePoint now, std::vector<LogSummary>* summaries);

  std::unordered_map<std::string, Repeats> texts_;  // by level and text, digits as one 0
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_LOG_LIMIT_H_
