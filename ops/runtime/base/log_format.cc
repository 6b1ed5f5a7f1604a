#include "ops/runtime/base/log_format.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string_view>

#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

constexpr int64_t kDay = 86400 * 1000;  // milliseconds

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

int64_t DayOf(int64_t time) { return (time >= 0 ? time : time - kDay + 1) / kDay; }

// "12:03:11.402Z". By hand, because gmtime_r takes a lock, which a forked child may not.
std::string TimeOfDay(int64_t time) {
  const auto of_day = static_cast<int>(time - DayOf(time) * kDay);
  char text[32];
  std::snprintf(text, sizeof(text), "%02d:%02d:%02d.%03dZ", of_day / 3600000, of_day / 60000 % 60,
                of_day / 1000 % 60, of_day % 1000);
  return text;
}

// "2026-05-02". Counts in eras of 400 years that begin on a first of March: the algorithm
// civil_from_days of Howard Hinnant, http://howardhinnant.github.io/date_algorithms.html.
std::string Date(int64_t time) {
  const int64_t days = DayOf(time) + 719468;  // since 0000-03-01
  const int64_t era = (days >= 0 ? days : days - 146096) / 146097;
  const int64_t of_era = days - era * 146097;
  const int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  const int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t month_from_march = (5 * of_year + 2) / 153;
  const auto day = static_cast<int>(of_year - (153 * month_from_march + 2) / 5 + 1);
  const auto month =
      static_cast<int>(month_from_march < 10 ? month_from_march + 3 : month_from_march - 9);
  const auto year = static_cast<int>(year_of_era + era * 400 + (month <= 2 ? 1 : 0));
  char text[48];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02d", year, month, day);
  return text;
}

// In quotes, as RFC 8259 wants it.
std::string JsonString(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t length = Utf8Size(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      quoted += "\xEF\xBF\xBD";
    } else if (first == '"' || first == '\\') {
      quoted += '\\';
      quoted += text[0];
    } else if (first == '\n') {
      quoted += "\\n";
    } else if (first < 0x20 || first == 0x7F) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(first));
      quoted += escape;
    } else {
      quoted += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return quoted + '"';
}

std::string SourceText(const LogSource& source) {
  const char* slash = std::strrchr(source.file, '/');
  return std::string(slash == nullptr ? source.file : slash + 1) + ":" +
         std::to_string(source.line);
}

std::string AsJson(const LogStyle& style, LogLevel level, int64_t time, const std::string& text,
                   const LogSource& source) {
  const LogIdentity& identity = style.identity;
  std::string line = "{";
  if (!style.hide_time) line += "\"time\":\"" + Date(time) + "T" + TimeOfDay(time) + "\",";
  line += std::string("\"level\":\"") + LevelName(level) + "\",";
  if (identity.rank != kNoRank) {
    line += "\"rank\":" + std::to_string(identity.rank) +
            ",\"size\":" + std::to_string(identity.size) + ",";
  }
  if (!identity.host.empty()) line += "\"host\":" + JsonString(identity.host) + ",";
  line += "\"pid\":" + std::to_string(getpid()) + ",\"text\":" + JsonString(text);
  if (style.show_source && source.file != nullptr) {
    line += ",\"source\":" + JsonString(SourceText(source));
  }
  return line + "}\n";
}

}  // namespace

std::string FormatLogLine(const LogStyle& style, LogLevel level, int64_t time,
                          const std::string& text, const LogSource& source) {
  if (style.json) return AsJson(style, level, time, text, source);
  const LogIdentity& identity = style.identity;
  std::string line = "[tfring] ";
  if (!style.hide_time) line += TimeOfDay(time) + " ";
  if (identity.rank != kNoRank) line += "rank " + std::to_string(identity.rank) + " ";
  if (!identity.host.empty()) line += "(host " + identity.host + ") ";
  line += LevelName(level);
  line += ": ";
  line += text;
  line += '\n';
  return line;
}

}  // namespace tfring
