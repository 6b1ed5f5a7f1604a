#ifndef TFRING_OPS_RUNTIME_BASE_LOG_H_
#define TFRING_OPS_RUNTIME_BASE_LOG_H_

#include <sstream>
#include <string>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/log_format.h"
#include "ops/runtime/base/types.h"

// The log of this process, on stderr. Settings and identity belong to the process, like stderr
// itself. Any thread may use all of this; what a line looks like is in log_format.h.

namespace tfring {

// Takes the LOG_ settings. Before the first call those of a default Config count.
TFRING_EXPORT void ConfigureLog(const Config& config);

// Who writes the lines: what is in front of them from now on.
TFRING_EXPORT void SetLogIdentity(const LogIdentity& identity);

TFRING_EXPORT bool LogEnabled(LogLevel level);

// Logs one line. Does not wait for stderr, which may be a pipe that nobody reads, a terminal that
// is held (Ctrl-S) or a file on a full disk: a thread of its own writes the lines, each with a
// single write. When more than kMaxLogBytes wait, or stderr takes nothing, lines are dropped, and
// their number is written in their place. From level info on, the same text (numbers aside) is
// written Config::log_repeats times a minute, then counted; see log_limit.h. At the end of the
// process what waits is written, if stderr takes it within a second. A forked child, which has no
// such thread, writes itself, and drops what stderr does not take within kDirectLogLimit.
TFRING_EXPORT void Log(LogLevel level, const std::string& text, const LogSource& source = {});
inline constexpr size_t kMaxLogBytes = 1 << 20;
inline constexpr Duration kDirectLogLimit = kSecond / 10;

// Waits until all lines so far are written, also the counts of lines that were not; false if that
// takes longer than `limit`.
TFRING_EXPORT bool FlushLog(Duration limit);

// Collects one line and logs it at the end of the statement. Lives for one statement on one thread;
// use it through TFRING_LOG, which evaluates nothing when the level is off.
class LogLine {
 public:
  LogLine(LogLevel level, const LogSource& source) : level_(level), source_(source) {}
  ~LogLine() { Log(level_, stream_.str(), source_); }
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  LogLevel level_;
  LogSource source_;
  std::ostringstream stream_;
};

}  // namespace tfring

// TFRING_LOG(kInfo) << "text " << value;
#define TFRING_LOG(level)                                 \
  if (!::tfring::LogEnabled(::tfring::LogLevel::level)) { \
  } else                                                  \
    ::tfring::LogLine(::tfring::LogLevel::level, ::tfring::LogSource{__FILE__, __LINE__}).stream()

#endif  // TFRING_OPS_RUNTIME_BASE_LOG_H_
