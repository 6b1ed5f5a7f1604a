#include "ops/runtime/base/log_limit.h"

#include <algorithm>
#include <string_view>

namespace tfring {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The level and the text with every row of digits as one 0, at most so long.
std::string KeyOf(LogLevel level, const std::string& text) {
  std::string key(1, static_cast<char>('a' + static_cast<int>(level)));
  for (const char c : text) {
    if (key.size() >= LogLimiter::kMaxKept) break;
    if (!IsDigit(c)) {
      key += c;
    } else if (key.back() != '0') {
      key += '0';
    }
  }
  return key;
}

// At most so many bytes, without half a character at the end.
std::string Cut(const std::string& text) {
  if (text.size() <= LogLimiter::kMaxKept) return text;
  size_t length = LogLimiter::kMaxKept;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80) --length;
  return text.substr(0, length) + "...";
}

}  // namespace

bool LogLimiter::Admit(LogLevel level, const std::string& text, int64_t per_minute, TimePoint now,
                       std::vector<LogSummary>* before) {
  if (per_minute <= 0) return true;
  std::string key = KeyOf(level, text);
  auto found = texts_.find(key);
  if (found != texts_.end() && now - found->second.since >= kLogMinute) {
    Summarize(found->second, now, before);
    found->second = Repeats();
    found->second.since = now;
  }
  if (found == texts_.end()) {
    if (texts_.size() >= kMaxTexts) MakeRoom(now, before);
    found = texts_.emplace(std::move(key), Repeats()).first;
    found->second.since = now;
  }
  Repeats& repeats = found->second;
  if (repeats.written < per_minute) {
    ++repeats.written;
    return true;
  }
  ++repeats.counted;
  repeats.level = level;
  repeats.text = Cut(text);
  return false;
}

void LogLimiter::EndMinutes(TimePoint now, std::vector<LogSummary>* summaries) {
  for (auto it = texts_.begin(); it != texts_.end();) {
    if (now - it->second.since < kLogMinute) {
      ++it;
      continue;
    }
    Summarize(it->second, now, summaries);
    it = texts_.erase(it);
  }
}

void LogLimiter::EndAll(TimePoint now, std::vector<LogSummary>* summaries) {
  for (auto it = texts_.begin(); it != texts_.end();) {
    if (it->second.counted == 0) {
      ++it;
      continue;
    }
    Summarize(it->second, now, summaries);
    it = texts_.erase(it);
  }
}

TimePoint LogLimiter::next_end() const {
  TimePoint first = kNever;
  for (const auto& [key, repeats] : texts_) {
    if (repeats.counted > 0) first = std::min(first, repeats.since + kLogMinute);
  }
  return first;
}

void LogLimiter::Summarize(const Repeats& repeats, TimePoint now,
                           std::vector<LogSummary>* summaries) {
  if (repeats.counted == 0) return;
  std::string text = repeats.text;
  if (repeats.counted > 1) {
    const int64_t seconds = std::max<int64_t>(1, (now - repeats.since) / kSecond);
    text += " (and " + std::to_string(repeats.counted - 1) + " more like this in " +
            std::to_string(seconds) + " s)";
  }
  summaries->push_back({repeats.level, std::move(text)});
}

void LogLimiter::MakeRoom(TimePoint now, std::vector<LogSummary>* summaries) {
  EndMinutes(now, summaries);
  if (texts_.size() < kMaxTexts) return;
  const auto oldest = std::min_element(
      texts_.begin(), texts_.end(),
      [](const auto& a, const auto& b) { return a.second.since < b.second.since; });
  Summarize(oldest->second, now, summaries);
  texts_.erase(oldest);
}

}  // namespace tfring
