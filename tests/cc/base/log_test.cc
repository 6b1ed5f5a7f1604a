#include "ops/runtime/base/log.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ops/runtime/base/config.h"
#include "tests/cc/test.h"

namespace tfring::log_test {
namespace {

// Lines without time, so that tests can compare them; by default without a limit of repeats.
void Configure(LogLevel level, int64_t repeats = 0, bool json = false) {
  Config config;
  config.log_level = static_cast<int64_t>(level);
  config.log_repeats = repeats;
  config.log_hide_time = true;
  config.log_json = json;
  ConfigureLog(config);
}

// Stderr as a pipe, which is read when the test says so. Gives stderr back at its end.
class PipedStderr {
 public:
  PipedStderr() : stderr_copy_(dup(STDERR_FILENO)) {
    if (pipe(ends_) != 0) std::abort();
    dup2(ends_[1], STDERR_FILENO);
    close(ends_[1]);
  }
  ~PipedStderr() {
    Restore();
    close(ends_[0]);
  }

  // Appends what comes to text() until it has `size` bytes; without a limit until the end.
  void ReadUntil(size_t size) {
    char buffer[4096];
    ssize_t n = 1;
    while (text_.size() < size && (n = read(ends_[0], buffer, sizeof(buffer))) > 0) {
      text_.append(buffer, static_cast<size_t>(n));
    }
  }
  void Restore() {  // the pipe has an end then
    if (stderr_copy_ < 0) return;
    dup2(stderr_copy_, STDERR_FILENO);
    close(stderr_copy_);
    stderr_copy_ = -1;
  }
  // What is left of the log, once it is written; at most what a pipe holds.
  const std::string& Rest() {
    EXPECT_TRUE(FlushLog(20 * kSecond));
    Restore();
    ReadUntil(SIZE_MAX);
    return text_;
  }
  const std::string& text() const { return text_; }

 private:
  int stderr_copy_;
  int ends_[2] = {-1, -1};
  std::string text_;
};

TEST(LogLinesOfTheLevelAndAboveGoToStderr) {
  PipedStderr out;
  SetLogIdentity({2, 4, "b"});
  Configure(LogLevel::kTrace);
  TFRING_LOG(kTrace) << "a " << 1;
  TFRING_LOG(kDebug) << "b";
  Configure(LogLevel::kWarning);
  bool evaluated = false;
  TFRING_LOG(kInfo) << (evaluated = true);
  TFRING_LOG(kWarning) << "c";
  TFRING_LOG(kError) << "d";
  EXPECT_EQ(out.Rest(),
            "[tfring] rank 2 (host b) trace: a 1\n[tfring] rank 2 (host b) debug: b\n"
            "[tfring] rank 2 (host b) warning: c\n[tfring] rank 2 (host b) error: d\n");
  EXPECT_TRUE(!evaluated);
  SetLogIdentity({});
}

TEST(LinesCarryTheTimeInUtcAndWhoWritesThem) {
  const int64_t time = 1'777'723'391'402;  // date -u -d @1777723391: 2026-05-02 12:03:11
  LogStyle style;
  EXPECT_EQ(FormatLogLine(style, LogLevel::kInfo, time, "x"), "[tfring] 12:03:11.402Z info: x\n");
  style.identity = {3, 4, "b"};
  EXPECT_EQ(FormatLogLine(style, LogLevel::kWarning, time, "slow"),
            "[tfring] 12:03:11.402Z rank 3 (host b) warning: slow\n");
  style.json = style.show_source = true;
  EXPECT_EQ(FormatLogLine(style, LogLevel::kError, time, "slow", {"ops/a/b.cc", 7}),
            "{\"time\":\"2026-05-02T12:03:11.402Z\",\"level\":\"error\",\"rank\":3,\"size\":4,"
            "\"host\":\"b\",\"pid\":" +
                std::to_string(getpid()) + ",\"text\":\"slow\",\"source\":\"b.cc:7\"}\n");
}

TEST(DatesAreThoseOfTheCalendar) {
  LogStyle style;
  style.json = true;
  const auto date = [&style](int64_t seconds) {
    return FormatLogLine(style, LogLevel::kInfo, seconds * 1000, "").substr(9, 20);
  };
  EXPECT_EQ(date(0), "1970-01-01T00:00:00.");
  EXPECT_EQ(date(-1), "1969-12-31T23:59:59.");
  EXPECT_EQ(date(951'782'400), "2000-02-29T00:00:00.");
  EXPECT_EQ(date(4'107'542'399), "2100-02-28T23:59:59.");
  EXPECT_EQ(date(4'107'542'400), "2100-03-01T00:00:00.");
}

TEST(JsonHoldsAnyText) {
  LogStyle style;
  style.json = style.hide_time = true;
  const auto quoted = [&style](const std::string& text) {
    const std::string line = FormatLogLine(style, LogLevel::kInfo, 0, text);
    const std::string start = ",\"text\":";
    const size_t from = line.find(start) + start.size();
    return line.substr(from, line.size() - from - 2);
  };
  EXPECT_EQ(quoted("a\"b\\c\nd\te\x7F"), "\"a\\\"b\\\\c\\nd\\u0009e\\u007f\"");
  EXPECT_EQ(quoted(std::string("\0", 1)), "\"\\u0000\"");
  EXPECT_EQ(quoted("\xC3\xBC \xE2\x98\x83 \xF0\x9F\x8E\x89"),
            "\"\xC3\xBC \xE2\x98\x83 \xF0\x9F\x8E\x89\"");
  const std::string bad = "\xEF\xBF\xBD";  // U+FFFD
  // Alone, cut, longer than needed, half of a pair, too large, a byte that starts nothing.
  EXPECT_EQ(quoted("\x80"), "\"" + bad + "\"");
  EXPECT_EQ(quoted("\xE2\x98"), "\"" + bad + bad + "\"");
  EXPECT_EQ(quoted("\xC0\xAF"), "\"" + bad + bad + "\"");
  EXPECT_EQ(quoted("\xED\xA0\x80"), "\"" + bad + bad + bad + "\"");
  EXPECT_EQ(quoted("\xF4\x90\x80\x80"), "\"" + bad + bad + bad + bad + "\"");
  EXPECT_EQ(quoted("\xFFx"), "\"" + bad + "x\"");
}

TEST(SourcesAreInJsonWhileDebugging) {
  PipedStderr out;
  Configure(LogLevel::kInfo, 0, true);
  TFRING_LOG(kInfo) << "without";
  Configure(LogLevel::kDebug, 0, true);
  TFRING_LOG(kInfo) << "with";
  const std::string text = out.Rest();
  EXPECT_CONTAINS(text, "\"text\":\"without\"}");
  EXPECT_CONTAINS(text, "\"text\":\"with\",\"source\":\"log_test.cc:");
  Configure(LogLevel::kInfo);
}

TEST(ATextThatRepeatsIsWrittenSoManyTimesAMinute) {
  PipedStderr out;
  Configure(LogLevel::kDebug, 2);
  for (int i = 0; i < 10; ++i) TFRING_LOG(kWarning) << "plan " << i << " is late";
  for (int i = 0; i < 3; ++i) TFRING_LOG(kDebug) << i;  // has no limit
  EXPECT_EQ(out.Rest(),
            "[tfring] warning: plan 0 is late\n[tfring] warning: plan 1 is late\n"
            "[tfring] debug: 0\n[tfring] debug: 1\n[tfring] debug: 2\n");
  Configure(LogLevel::kInfo);
}

// Logs numbered lines, of which a pipe holds less than a thousand.
void LogNumbers(int first, int end, const std::string& padding) {
  for (int i = first; i < end; ++i) TFRING_LOG(kWarning) << i << padding;
}

// Whole lines, numbered from 0 in order; those that are missing are counted where they are missing.
// Returns how many notices there are.
int ExpectNumbers(const std::string& text, int count, const std::string& padding) {
  const std::string prefix = "[tfring] warning: ";
  const std::string notice = " lines of the log are missing here";
  int next = 0;
  int notices = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == prefix + std::to_string(next) + padding) {
      ++next;
      continue;
    }
    EXPECT_EQ(line.substr(0, prefix.size()), prefix);
    EXPECT_CONTAINS(line, notice);
    if (line.find(notice) == std::string::npos) return notices;  // one failure is enough
    next += std::stoi(line.substr(prefix.size()));
    ++notices;
  }
  EXPECT_EQ(next, count);
  return notices;
}

TEST(ALogThatNobodyReadsStopsNobodyAndCountsWhatItDrops) {
  Configure(LogLevel::kInfo);
  const std::string padding(200, '.');
  PipedStderr out;
  LogNumbers(0, 20000, padding);  // 4 MB; the log keeps 1 MB, and a pipe 64 KB
  EXPECT_TRUE(!FlushLog(kSecond / 100));
  std::thread reader([&] { out.ReadUntil(SIZE_MAX); });
  EXPECT_TRUE(FlushLog(20 * kSecond));
  LogNumbers(20000, 20001, padding);
  EXPECT_TRUE(FlushLog(20 * kSecond));
  out.Restore();
  reader.join();
  EXPECT_TRUE(ExpectNumbers(out.text(), 20001, padding) > 0);
  EXPECT_CONTAINS(out.text(), "20000" + padding);
}

// As where the writer of a busy machine does not run until lines have been dropped.
TEST(LinesThatFollowDroppedOnesComeAfterTheirNumber) {
  Configure(LogLevel::kInfo);
  const std::string padding(200, '.');
  PipedStderr out;
  LogNumbers(0, 6000, padding);  // more than the log keeps
  out.ReadUntil(kMaxLogBytes * 3 / 4);
  LogNumbers(6000, 6100, padding);  // there is room again
  std::thread reader([&] { out.ReadUntil(SIZE_MAX); });
  EXPECT_TRUE(FlushLog(20 * kSecond));
  out.Restore();
  reader.join();
  EXPECT_EQ(ExpectNumbers(out.text(), 6100, padding), 1);
  EXPECT_CONTAINS(out.text(), "6099" + padding);
}

TEST(LinesThatAFullDiskDidNotTakeAreCounted) {
  Configure(LogLevel::kInfo);
  const int full = open("/dev/full", O_WRONLY);
  if (full < 0) return;
  const int stderr_copy = dup(STDERR_FILENO);
  dup2(full, STDERR_FILENO);
  close(full);
  LogNumbers(0, 5, "");
  EXPECT_TRUE(FlushLog(20 * kSecond));
  dup2(stderr_copy, STDERR_FILENO);
  close(stderr_copy);
  PipedStderr out;
  LogNumbers(5, 7, "");
  EXPECT_EQ(ExpectNumbers(out.Rest(), 7, ""), 1);
}

// Runs `body` in a forked child; its exit code, or -1 if it has not ended after 20 s.
template <typename Body>
int InChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(7);
  }
  int status = 0;
  for (int i = 0; i < 2000; ++i) {
    if (waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
    }
    usleep(10'000);
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

TEST(AForkedChildLogsByItselfAndWaitsForNobody) {
  Configure(LogLevel::kInfo);
  PipedStderr out;
  TFRING_LOG(kInfo) << "parent";
  EXPECT_TRUE(FlushLog(20 * kSecond));
  EXPECT_EQ(InChild([] {
              TFRING_LOG(kInfo) << "child";
              FlushLog(20 * kSecond);
            }),
            7);
  EXPECT_EQ(out.Rest(), "[tfring] info: parent\n[tfring] info: child\n");
  PipedStderr blocked;
  LogNumbers(0, 2000, std::string(200, '.'));  // the writer holds what it does not get rid of
  EXPECT_EQ(InChild([] { TFRING_LOG(kInfo) << "child"; }), 7);
  std::thread reader([&] { blocked.ReadUntil(SIZE_MAX); });
  EXPECT_TRUE(FlushLog(20 * kSecond));
  blocked.Restore();
  reader.join();
}

}  // namespace
}  // namespace tfring::log_test
