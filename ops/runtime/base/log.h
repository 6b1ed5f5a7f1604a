#ifndef TFRING_OPS_RUNTIME_BASE_LOG_H_
#define TFRING_OPS_RUNTIME_BASE_LOG_H_

#include <sstream>
#include <string>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/log_format.h"
#include "ops/runtime/base/types.h"

// The log of this process, on stderr, with one set of settings and one identity. Thread-safe. The
// format of a line is in log_format.h.

namespace tfring {

// Applies the LOG_ settings; until then those of a default Config apply.
TFRING_EXPORT void ConfigureLog(const Config& config);

// Sets the identity in front of later lines.
TFRING_EXPORT void SetLogIdentity(const LogIdentity& identity);

TFRING_EXPORT bool LogEnabled(LogLevel level);

// Logs one line without waiting for stderr, which may be a pipe that nobody reads, a stopped
// terminal (Ctrl-S) or a file on a full disk: a thread writes each line with a single write. If
// more than kMaxLogBytes wait, or stderr takes nothing, lines are dropped and their number is
// written instead. From level info on, lines with equal text (except digits) are written
// Config::log_repeats times a minute and then counted. At the end of the process the waiting lines
// are written if stderr takes them within a second. A forked child has no such thread: it writes
// itself and drops what stderr does not take within kDirectLogLimit.
TFRING_EXPORT void Log(LogLevel level, const std::string& text, const LogSource& source = {});
inline constexpr size_t kMaxLogBytes = 1 << 20;
inline constexpr Duration kDirectLogLimit = kSecond / 10;

// Waits until all lines so far, and the counts of dropped ones, are written; false after `limit`.
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
