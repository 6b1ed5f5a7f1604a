#include "ops/runtime/base/log_limit.h"

#include <string>
#include <vector>

#include "tests/cc/test.h"

namespace tfring::log_limit_test {
namespace {

// A limiter, the time, and what was written.
struct Log {
  void Add(const std::string& text, LogLevel level = LogLevel::kWarning) {
    std::vector<LogSummary> before;
    const bool admitted = limiter.Admit(level, text, 2, now, &before);
    Write(before);
    if (admitted) written.push_back(text);
  }
  void Write(const std::vector<LogSummary>& summaries) {
    for (const LogSummary& summary : summaries) written.push_back(summary.text);
  }
  void EndMinutes() {
    std::vector<LogSummary> ended;
    limiter.EndMinutes(now, &ended);
    Write(ended);
  }

  LogLimiter limiter;
  TimePoint now = 1000 * kSecond;
  std::vector<std::string> written;
};

using Lines = std::vector<std::string>;

TEST(TheLastOfAMinuteIsWrittenWithTheNumberOfTheOthers) {
  Log log;
  for (int i = 0; i < 7; ++i) log.Add("rank " + std::to_string(i * 7) + " is late");
  EXPECT_EQ(log.limiter.next_end(), log.now + kLogMinute);
  log.now += kLogMinute - 1;
  log.EndMinutes();
  EXPECT_EQ(log.written, (Lines{"rank 0 is late", "rank 7 is late"}));
  log.now += 1;
  log.EndMinutes();
  EXPECT_EQ(log.written.back(), "rank 42 is late (and 4 more like this in 60 s)");
  EXPECT_EQ(log.limiter.next_end(), kNever);
  log.Add("rank 8 is late");  // a new minute
  EXPECT_EQ(log.written.back(), "rank 8 is late");
}

TEST(TheNextLineOfATextEndsItsMinute) {
  Log log;
  for (int i = 0; i < 3; ++i) log.Add("x" + std::to_string(i));
  log.now += 2 * kLogMinute;
  log.Add("x9");
  EXPECT_EQ(log.written, (Lines{"x0", "x1", "x2", "x9"}));
}

TEST(TextsThatDifferInMoreThanNumbersDoNotCountTogether) {
  Log log;
  for (const char* text : {"a 1", "a 22", "b 1", "b 2", "a", "a"}) log.Add(text);
  log.Add("a 1", LogLevel::kError);
  EXPECT_EQ(log.written.size(), size_t{7});
  EXPECT_EQ(log.limiter.next_end(), kNever);
}

TEST(NothingIsLostOfTextsThatAreForgotten) {
  Log log;
  for (int i = 0; i < 5; ++i) log.Add("first");
  log.now += kSecond;
  for (size_t i = 0; i <= LogLimiter::kMaxTexts; ++i) log.Add(std::string(i + 1, 'x'));
  EXPECT_EQ(log.written.size(), 2 + 1 + LogLimiter::kMaxTexts + 1);
  size_t summaries = 0;
  for (const std::string& line : log.written) {
    summaries += line == "first (and 2 more like this in 1 s)" ? 1 : 0;
  }
  EXPECT_EQ(summaries, size_t{1});
}

TEST(LongTextsAreCutBetweenCharacters) {
  Log log;
  std::string text(LogLimiter::kMaxKept - 1, 'x');
  text += "\xC3\xBC and more";
  for (int i = 0; i < 3; ++i) log.Add(text);
  std::vector<LogSummary> rest;
  log.limiter.EndAll(log.now, &rest);
  EXPECT_EQ(rest.size(), size_t{1});
  EXPECT_EQ(rest[0].text, std::string(LogLimiter::kMaxKept - 1, 'x') + "...");
}

}  // namespace
}  // namespace tfring::log_limit_test
