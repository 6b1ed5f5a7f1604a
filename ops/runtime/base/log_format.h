#ifndef TFRING_OPS_RUNTIME_BASE_LOG_FORMAT_H_
#define TFRING_OPS_RUNTIME_BASE_LOG_FORMAT_H_

#include <cstdint>
#include <string>

#include "ops/runtime/base/export.h"
#include "ops/runtime/base/types.h"

namespace tfring {

// Values are those of Config::log_level.
enum class LogLevel : int { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4 };

// Who writes a line. Without a rank, before init, the line says nothing of it.
struct LogIdentity {
  Rank rank = kNoRank;
  int size = 0;
  std::string host;  // may be empty

  bool operator==(const LogIdentity& other) const {
    return rank == other.rank && size == other.size && host == other.host;
  }
};

// Where in the program a line comes from. `file` may have folders in front.
struct LogSource {
  const char* file = nullptr;
  int line = 0;
};

// How lines look.
struct LogStyle {
  bool json = false;
  bool hide_time = false;
  bool show_source = false;  // in JSON only
  LogIdentity identity;

  bool operator==(const LogStyle& other) const {
    return json == other.json && hide_time == other.hide_time && show_source == other.show_source &&
           identity == other.identity;
  }
};

// The line as it is written, with its line end. `time` is in milliseconds since 1970, UTC. As text:
//   [tfring] 12:03:11.402Z rank 3 (host b) warning: text
// As JSON, where what is not valid UTF-8 becomes U+FFFD:
//   {"time":"2026-05-02T12:03:11.402Z","level":"warning","rank":3,"size":4,"host":"b","pid":139,
//    "text":"text","source":"engine.cc:40"}
TFRING_EXPORT std::string FormatLogLine(const LogStyle& style, LogLevel level, int64_t time,
                                        const std::string& text, const LogSource& source = {});

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_LOG_FORMAT_H_
