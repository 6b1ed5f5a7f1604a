#ifndef TFRING_OPS_RUNTIME_BASE_LOG_WRITER_H_
#define TFRING_OPS_RUNTIME_BASE_LOG_WRITER_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "ops/runtime/base/log_format.h"
#include "ops/runtime/base/log_limit.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Writes lines to stderr on a thread that starts with the first line. Never destroyed: other
// threads may log until the process ends. Log() says what it promises.
class LogWriter {
 public:
  static LogWriter& Get();

  void SetRepeats(int64_t per_minute) { repeats_.store(per_minute); }
  // `style` must live as long as the process.
  void SetStyle(const LogStyle* style) { style_.store(style); }
  const LogStyle& style() const { return *style_.load(); }

  void Add(LogLevel level, const std::string& text, const LogSource& source);
  bool Flush(Duration limit);

 private:
  LogWriter();

  // In a forked child the thread is missing, and a missing thread may hold the mutex.
  bool forked() const;
  std::string Format(LogLevel level, const std::string& text, const LogSource& source = {}) const;

  // All of these under mutex_.
  bool Start();  // false if the system has no thread left
  void Push(std::string line);
  void PushAll(const std::vector<LogSummary>& summaries);
  void PushNotice();

  void Run();
  void WriteNext(std::unique_lock<std::mutex>* lock);

  const pid_t owner_;
  std::atomic<int64_t> repeats_;
  const LogStyle first_style_;
  std::atomic<const LogStyle*> style_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  LogLimiter limiter_;
  std::deque<std::string> lines_;
  size_t bytes_ = 0;     // of lines_ and of the line that is being written
  int64_t dropped_ = 0;  // after the last of lines_, because there was no room
  int64_t failed_ = 0;   // before the first of lines_, because stderr did not take them
  bool cut_ = false;     // stderr ends in the middle of a line that failed
  bool started_ = false;
  bool writing_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_LOG_WRITER_H_
