#include "ops/runtime/base/log.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/signals.h"

namespace tfring {
namespace {

std::atomic<int> log_level{static_cast<int>(LogLevel::kInfo)};
std::atomic<const LogStyle*> log_style{nullptr};  // nullptr: a default one

std::atomic<int64_t>& Repeats() {
  static std::atomic<int64_t> repeats{Config().log_repeats};
  return repeats;
}

LogStyle Style() {
  const LogStyle* style = log_style.load();
  return style == nullptr ? LogStyle() : *style;
}

// Changes how lines look from now on. What was used before is kept: a thread that formats a line
// holds no lock.
template <typename Change>
void ChangeStyle(const Change& change) {
  static std::mutex mutex;  // guards `used`, and makes changes follow one another
  static auto* const used = new std::vector<std::unique_ptr<const LogStyle>>();
  std::lock_guard<std::mutex> lock(mutex);
  LogStyle style = Style();
  change(&style);
  if (style == Style()) return;
  used->push_back(std::make_unique<const LogStyle>(std::move(style)));
  log_style.store(used->back().get());
}

// The line with the time of now.
std::string Format(LogLevel level, const std::string& text, const LogSource& source = {}) {
  struct timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t milliseconds = static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  return FormatLogLine(Style(), level, milliseconds, text, source);
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

// Decides which lines are written, so that a repeated line does not bury the others. A minute
// begins with the first line of a text, digits aside.
class LogLimiter {
 public:
  // Whether to write this line, and how many like it were left out in the last minute.
  bool Admit(LogLevel level, const std::string& text, int64_t* left_out) {
    const int64_t per_minute = Repeats().load();
    // Who asks for traces wants all of them.
    if (per_minute <= 0 || level < LogLevel::kInfo) return true;
    const std::string key = KeyOf(text);
    if (minutes_.size() >= kMaxTexts && minutes_.count(key) == 0) minutes_.clear();
    const TimePoint now = MonotonicNow();
    Minute& minute = minutes_.try_emplace(key, Minute{now}).first->second;
    if (now - minute.since >= 60 * kSecond) {
      *left_out = minute.left_out;
      minute = {now};
    }
    if (++minute.lines <= per_minute) return true;
    ++minute.left_out;
    minute.level = level;
    minute.last = text;
    return false;
  }

  // Ends all minutes. Calls `write` with the last line of each text that was left out, and how many
  // were, for which no later line has told it.
  template <typename Write>
  void EndMinutes(const Write& write) {
    for (const auto& [key, minute] : minutes_) {
      if (minute.left_out > 0) write(minute.level, minute.last, minute.left_out - 1);
    }
    minutes_.clear();
  }

 private:
  struct Minute {
    TimePoint since;
    int64_t lines = 0;
    int64_t left_out = 0;
    LogLevel level = LogLevel::kInfo;  // of the last line that was left out
    std::string last = {};
  };
  static constexpr size_t kMaxTexts = 256;

  static std::string KeyOf(const std::string& text) {
    std::string key;
    for (const char c : text.substr(0, 1024)) {
      const bool digit = c >= '0' && c <= '9';
      if (!digit || key.empty() || key.back() != '0') key += digit ? '0' : c;
    }
    return key;
  }

  std::unordered_map<std::string, Minute> minutes_;
};

std::string NoteOf(int64_t left_out) {
  return left_out == 0 ? "" : " (" + std::to_string(left_out) + " more like this are left out)";
}

// Writes lines to stderr on a thread that starts with the first line. Never destroyed: other
// threads may log until the process ends. Log() says what it promises.
class LogWriter {
 public:
  static LogWriter& Get() {
    static LogWriter* const writer = new LogWriter();
    return *writer;
  }

  void Add(LogLevel level, const std::string& text, const LogSource& source);
  void EndMinutes();  // writes what was left out
  bool Flush(Duration limit);

 private:
  LogWriter() : owner_(getpid()) {
    // At the normal end of the process; no longer than a reader needs that is there at all.
    std::atexit([] {
      Get().EndMinutes();
      FlushLog(kSecond);
    });
  }

  // In a forked child the thread is missing, and a missing thread may hold the mutex.
  bool forked() const { return getpid() != owner_; }

  // All of these under mutex_.
  bool Start();  // false if the system has no thread left
  void Push(std::string line);
  void PushNotice();

  void Run();
  void WriteNext(std::unique_lock<std::mutex>* lock);

  const pid_t owner_;

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

void LogWriter::Add(LogLevel level, const std::string& text, const LogSource& source) {
  if (forked()) return WriteDirectly(Format(level, text, source));
  std::unique_lock<std::mutex> lock(mutex_);
  if (!started_ && !Start()) {
    lock.unlock();
    return WriteDirectly(Format(level, text, source));
  }
  int64_t left_out = 0;
  if (!limiter_.Admit(level, text, &left_out)) return;
  Push(Format(level, text + NoteOf(left_out), source));
  changed_.notify_all();
}

void LogWriter::EndMinutes() {
  if (forked()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  limiter_.EndMinutes([this](LogLevel level, const std::string& text, int64_t left_out) {
    Push(Format(level, text + NoteOf(left_out)));
  });
  changed_.notify_all();
}

bool LogWriter::Flush(Duration limit) {
  if (forked()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
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
    if (lines_.empty()) {
      changed_.wait(lock);
    } else {
      WriteNext(&lock);
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
    line = (cut_ ? "\n" : "") +
           Format(LogLevel::kWarning, std::to_string(failed_) +
                                          " lines of the log are missing here: stderr was closed "
                                          "or its disk was full") +
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

}  // namespace

void ConfigureLog(const Config& config) {
  log_level.store(static_cast<int>(config.log_level));
  Repeats().store(config.log_repeats);
  ChangeStyle([&config](LogStyle* style) {
    style->json = config.log_json;
    style->hide_time = config.log_hide_time;
    style->show_source = config.log_level <= static_cast<int64_t>(LogLevel::kDebug);
  });
}

void SetLogIdentity(const LogIdentity& identity) {
  ChangeStyle([&identity](LogStyle* style) { style->identity = identity; });
}

bool LogEnabled(LogLevel level) {
  return static_cast<int>(level) >= log_level.load(std::memory_order_relaxed);
}

void Log(LogLevel level, const std::string& text, const LogSource& source) {
  if (LogEnabled(level)) LogWriter::Get().Add(level, text, source);
}

bool FlushLog(Duration limit) { return LogWriter::Get().Flush(limit); }

}  // namespace tfring
