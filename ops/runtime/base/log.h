#ifndef TFRING_OPS_RUNTIME_BASE_LOG_H_
#define TFRING_OPS_RUNTIME_BASE_LOG_H_

#include <sstream>
#include <string>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Values are those of Config::log_level.
enum class LogLevel : int { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4 };

// The level and the rank belong to the process, like stderr itself. Any thread may set and use
// them.
TFRING_EXPORT void SetLogLevel(LogLevel level);
TFRING_EXPORT void SetLogRank(Rank rank);  // kNoRank: no rank in the prefix
TFRING_EXPORT bool LogEnabled(LogLevel level);

// The line as it is written: "[tfring rank 3] warning: text\n".
TFRING_EXPORT std::string FormatLogLine(LogLevel level, Rank rank, const std::string& text);

// Logs one line. Does not wait for stderr, which may be a pipe that nobody reads or a terminal that
// is held (Ctrl-S): a thread of its own writes the lines, each with a single write. When more than
// kMaxLogBytes wait, lines are dropped, and their number is written in their place. At the end of
// the process what waits is written, if stderr takes it within a second.
TFRING_EXPORT void Log(LogLevel level, const std::string& text);
inline constexpr size_t kMaxLogBytes = 1 << 20;

// Waits until all lines so far are written; false if that takes longer than `limit`.
TFRING_EXPORT bool FlushLog(Duration limit);

// Collects one line and logs it at the end of the statement. Lives for one statement on one thread;
// use it through TFRING_LOG, which evaluates nothing when the level is off.
class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  ~LogLine() { Log(level_, stream_.str()); }
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  LogLevel level_;
  std::ostringstream stream_;
};

}  // namespace tfring

// TFRING_LOG(kInfo) << "text " << value;
#define TFRING_LOG(level)                                 \
  if (!::tfring::LogEnabled(::tfring::LogLevel::level)) { \
  } else                                                  \
    ::tfring::LogLine(::tfring::LogLevel::level).stream()

#endif  // TFRING_OPS_RUNTIME_BASE_LOG_H_
