#include "ops/runtime/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

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
  const std::string line = FormatLogLine(level, log_rank.load(std::memory_order_relaxed), text);
  const char* next = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t written = write(STDERR_FILENO, next, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // stderr is closed: there is nowhere to report it
    next += written;
    left -= static_cast<size_t>(written);
  }
}

}  // namespace tfring
