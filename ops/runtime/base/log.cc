#include "ops/runtime/base/log.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "ops/runtime/base/signals.h"

namespace tfring {
namespace {

std::atomic<int> log_level{static_cast<int>(LogLevel::kInfo)};
std::atomic<Rank> log_rank{kNoRank};

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return "trace";
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

void WriteToStderr(const std::string& line) {
  const char* next = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t written = write(STDERR_FILENO, next, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      struct pollfd entry = {STDERR_FILENO, POLLOUT, 0};
      poll(&entry, 1, -1);
      continue;
    }
    if (written <= 0) return;  // stderr is closed: there is nowhere to report it
    next += written;
    left -= static_cast<size_t>(written);
  }
}

// Writes lines on a thread that starts with the first line and lives as long as the process. Never
// destroyed. In a forked child, which has no such thread, the caller writes.
class LogWriter {
 public:
  static LogWriter& Get() {
    static LogWriter* const writer = new LogWriter();
    return *writer;
  }

  void Add(std::string line) {
    if (getpid() != owner_) return WriteToStderr(line);
    std::unique_lock<std::mutex> lock(mutex_);
    if (!started_ && !Start()) {
      lock.unlock();
      return WriteToStderr(line);
    }
    // Once lines were dropped, all are until there is room for many: or there would be a notice
    // between any two of them. A line that is longer than the limit has to be alone.
    const size_t limit = dropped_ > 0 ? kMaxLogBytes / 2 : kMaxLogBytes;
    if (bytes_ > 0 && bytes_ + line.size() > limit) {
      ++dropped_;
      return;
    }
    AddNotice();
    Push(std::move(line));
    changed_.notify_all();
  }

  bool Flush(Duration limit) {
    if (getpid() != owner_) return true;
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(limit),
                             [this] { return lines_.empty() && !writing_; });
  }

 private:
  LogWriter() : owner_(getpid()) {
    // At the normal end of the process; no longer than a reader needs that is there at all.
    std::atexit([] { FlushLog(kSecond); });
  }

  // Under the mutex. False if the system has no thread left.
  bool Start() {
    SignalsBlocked for_the_thread;
    try {
      std::thread([this] { Run(); }).detach();
      started_ = true;
    } catch (const std::system_error&) {
    }
    return started_;
  }

  // Under the mutex.
  void Push(std::string line) {
    bytes_ += line.size();
    lines_.push_back(std::move(line));
  }

  // Under the mutex: how many lines are missing after the last that was added.
  void AddNotice() {
    if (dropped_ == 0) return;
    Push(FormatLogLine(LogLevel::kWarning, log_rank.load(),
                       std::to_string(std::exchange(dropped_, 0)) +
                           " lines of the log are missing here: stderr did not take them in time"));
  }

  void Run() {
    pthread_setname_np(pthread_self(), "tfring-log");
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !lines_.empty(); });
      writing_ = true;
      std::string line = std::move(lines_.front());
      lines_.pop_front();
      lock.unlock();
      WriteToStderr(line);
      lock.lock();
      bytes_ -= line.size();
      writing_ = false;
      if (lines_.empty()) AddNotice();
      changed_.notify_all();
    }
  }

  const pid_t owner_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  size_t bytes_ = 0;     // of lines_ and of the line that is being written
  int64_t dropped_ = 0;  // after the last of lines_
  bool started_ = false;
  bool writing_ = false;
};

}  // namespace

void SetLogLevel(LogLevel level) { log_level.store(static_cast<int>(level)); }

void SetLogRank(Rank rank) { log_rank.store(rank); }

bool LogEnabled(LogLevel level) {
  return static_cast<int>(level) >= log_level.load(std::memory_order_relaxed);
}

std::string FormatLogLine(LogLevel level, Rank rank, const std::string& text) {
  std::string line = "[tfring";
  if (rank != kNoRank) line += " rank " + std::to_string(rank);
  line += "] ";
  line += LevelName(level);
  line += ": ";
  line += text;
  line += '\n';
  return line;
}

void Log(LogLevel level, const std::string& text) {
  if (!LogEnabled(level)) return;
  LogWriter::Get().Add(FormatLogLine(level, log_rank.load(std::memory_order_relaxed), text));
}

bool FlushLog(Duration limit) { return LogWriter::Get().Flush(limit); }

}  // namespace tfring
