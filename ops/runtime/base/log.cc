#include "ops/runtime/base/log.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/runtime/base/log_writer.h"

namespace tfring {
namespace {

std::atomic<int> log_level{static_cast<int>(LogLevel::kInfo)};

// Changes how lines look from now on. What was used before is kept: a thread that formats a line
// holds no lock.
template <typename Change>
void ChangeStyle(const Change& change) {
  static std::mutex mutex;  // guards `used`, and makes changes follow one another
  static auto* const used = new std::vector<std::unique_ptr<const LogStyle>>();
  std::lock_guard<std::mutex> lock(mutex);
  LogWriter& writer = LogWriter::Get();
  LogStyle style = writer.style();
  change(&style);
  if (style == writer.style()) return;
  used->push_back(std::make_unique<const LogStyle>(std::move(style)));
  writer.SetStyle(used->back().get());
}

}  // namespace

void ConfigureLog(const Config& config) {
  log_level.store(static_cast<int>(config.log_level));
  LogWriter::Get().SetRepeats(config.log_repeats);
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
