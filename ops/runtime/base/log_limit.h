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

// Decides which lines of a log are written, so that one that comes again and again does not bury
// the others. Two lines have the same text if they differ in digits only. Of each text the first
// lines of a minute are written; the rest is counted, and at the minute's end the last of them is
// written with their number. Knows kMaxTexts texts; for a new one it forgets the one whose minute
// began first. Not thread-safe.
class TFRING_EXPORT LogLimiter {
 public:
  static constexpr size_t kMaxTexts = 256;
  static constexpr size_t kMaxKept = 1024;  // bytes of a line that is kept for its summary

  // Whether to write this line. Before it everything has to be written that is added to `before`.
  bool Admit(LogLevel level, const std::string& text, int64_t per_minute, TimePoint now,
             std::vector<LogSummary>* before);

  // Ends the minutes that are over and appends what is to be written for them.
  void EndMinutes(TimePoint now, std::vector<LogSummary>* summaries);

  // Ends all minutes with lines that were counted.
  void EndAll(TimePoint now, std::vector<LogSummary>* summaries);

  // When the first minute ends for which there is something to write; kNever if there is none.
  TimePoint next_end() const;

 private:
  struct Repeats {
    TimePoint since = 0;
    int64_t written = 0;
    int64_t counted = 0;
    LogLevel level = LogLevel::kInfo;  // of the last line that was counted
    std::string text;                  // of the same, cut
  };

  // Appends what is to be written for lines that were counted, if any were.
  static void Summarize(const Repeats& repeats, TimePoint now, std::vector<LogSummary>* summaries);
  void MakeRoom(TimePoint now, std::vector<LogSummary>* summaries);

  std::unordered_map<std::string, Repeats> texts_;  // by level and text, digits as one 0
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_LOG_LIMIT_H_
