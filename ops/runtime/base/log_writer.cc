#include "ops/runtime/base/log_writer.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/config.h"
#include "ops/runtime/base/log.h"
#include "ops/runtime/base/signals.h"

namespace tfring {
namespace {

// Milliseconds since 1970.
int64_t WallTime() {
  struct timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

// Waits until stderr takes something; false when `limit` is over.
bool WaitForStderr(Duration limit) {
  struct pollfd entry = {STDERR_FILENO, POLLOUT, 0};
  const int milliseconds = limit == kNever ? -1 : static_cast<int>(limit / kMillisecond);
  return poll(&entry, 1, milliseconds) > 0;
}

// Writes all of a line, however long that takes. Returns how much of it stderr took: less if it is
// closed or its disk is full.
size_t WriteWhole(const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      WaitForStderr(kNever);
      continue;
    }
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  return done;
}

// Writes what stderr takes within kDirectLogLimit. A pipe that takes anything takes PIPE_BUF bytes.
void WriteDirectly(const std::string& line) {
  const TimePoint deadline = MonotonicNow() + kDirectLogLimit;
  size_t done = 0;
  while (done < line.size()) {
    if (!WaitForStderr(std::max<Duration>(0, deadline - MonotonicNow()))) return;
    const size_t size = std::min<size_t>(PIPE_BUF, line.size() - done);
    const ssize_t written = write(STDERR_FILENO, line.data() + done, size);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) return;
    done += static_cast<size_t>(written);
  }
}

}  // namespace

LogWriter& LogWriter::Get() {
  static LogWriter* const writer = new LogWriter();
  return *writer;
}

LogWriter::LogWriter() : owner_(getpid()), repeats_(Config().log_repeats), style_(&first_style_) {
  // At the normal end of the process; no longer than a reader needs that is there at all.
  std::atexit([] { FlushLog(kSecond); });
}

bool LogWriter::forked() const { return getpid() != owner_; }

std::string LogWriter::Format(LogLevel level, const std::string& text,
                              const LogSource& source) const {
  return FormatLogLine(style(), level, WallTime(), text, source);
}

void LogWriter::Add(LogLevel level, const std::string& text, const LogSource& source) {
  if (forked()) return WriteDirectly(Format(level, text, source));
  std::unique_lock<std::mutex> lock(mutex_);
  if (!started_ && !Start()) {
    lock.unlock();
    return WriteDirectly(Format(level, text, source));
  }
  // Who asks for traces wants all of them.
  const int64_t repeats = level >= LogLevel::kInfo ? repeats_.load() : 0;
  std::vector<LogSummary> before;
  const bool admitted = limiter_.Admit(level, text, repeats, MonotonicNow(), &before);
  PushAll(before);
  if (admitted) Push(Format(level, text, source));
  changed_.notify_all();
}

bool LogWriter::Flush(Duration limit) {
  if (forked()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<LogSummary> counted;
  limiter_.EndAll(MonotonicNow(), &counted);
  PushAll(counted);
  changed_.notify_all();
  return changed_.wait_for(lock, std::chrono::nanoseconds(limit),
                           [this] { return lines_.empty() && !writing_; });
}

bool LogWriter::Start() {
  SignalsBlocked for_the_thread;
  try {
    std::thread([this] { Run(); }).detach();
    started_ = true;
  } catch (const std::system_error&) {
    started_ = false;
  }
  return started_;
}

void LogWriter::Push(std::string line) {
  // Once lines were dropped, all are until there is room for many: or there would be a notice
  // between any two of them. A line that is longer than the limit has to be alone.
  const size_t limit = dropped_ > 0 ? kMaxLogBytes / 2 : kMaxLogBytes;
  if (bytes_ > 0 && bytes_ + line.size() > limit) {
    ++dropped_;
    return;
  }
  PushNotice();
  bytes_ += line.size();
  lines_.push_back(std::move(line));
}

void LogWriter::PushAll(const std::vector<LogSummary>& summaries) {
  for (const LogSummary& summary : summaries) Push(Format(summary.level, summary.text));
}

void LogWriter::PushNotice() {
  if (dropped_ == 0) return;
  lines_.push_back(
      Format(LogLevel::kWarning,
             std::to_string(std::exchange(dropped_, 0)) +
                 " lines of the log are missing here: stderr did not take them in time"));
  bytes_ += lines_.back().size();
}

void LogWriter::Run() {
  pthread_setname_np(pthread_self(), "tfring-log");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (!lines_.empty()) {
      WriteNext(&lock);
      continue;
    }
    const TimePoint now = MonotonicNow();
    const TimePoint end = limiter_.next_end();
    if (end <= now) {
      std::vector<LogSummary> ended;
      limiter_.EndMinutes(now, &ended);
      PushAll(ended);
    } else if (end == kNever) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, std::chrono::nanoseconds(end - now));
    }
  }
}

// Takes the first line and writes it, without the lock.
void LogWriter::WriteNext(std::unique_lock<std::mutex>* lock) {
  writing_ = true;
  std::string line = std::move(lines_.front());
  lines_.pop_front();
  const size_t size = line.size();
  if (failed_ > 0) {
    const std::string count = std::to_string(failed_);
    line =
        (cut_ ? "\n" : "") +
        Format(LogLevel::kWarning, count +
                                       " lines of the log are missing here: stderr was closed or "
                                       "its disk was full") +
        line;
  }
  lock->unlock();
  const size_t written = WriteWhole(line);
  lock->lock();
  failed_ = written == line.size() ? 0 : failed_ + 1;
  if (written > 0) cut_ = line[written - 1] != '\n';
  bytes_ -= size;
  writing_ = false;
  if (lines_.empty()) PushNotice();
  changed_.notify_all();
}

}  // namespace tfring
