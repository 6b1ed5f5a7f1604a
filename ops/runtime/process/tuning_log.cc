#include "ops/runtime/process/tuning_log.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "ops/runtime/base/log.h"

namespace tfring {
namespace {

const char* StepName(TuningRecord::Step step) {
  switch (step) {
    case TuningRecord::Step::kTried:
      return "tried";
    case TuningRecord::Step::kCompared:
      return "compared";
    case TuningRecord::Step::kKept:
      break;
  }
  return "kept";
}

// "TFRING_X_PIECE_BYTES 65536 (was 262144)".
std::string ChangeText(const char* name, int64_t before, int64_t after) {
  const std::string text = std::string(name) + " " + std::to_string(after);
  return before == after ? text : text + " (was " + std::to_string(before) + ")";
}

}  // namespace

TuningLog::TuningLog(const Config& config) : path_(config.autotune_log), given_(ValuesOf(config)) {}

void TuningLog::Open() {
  opened_ = true;
  if (path_.empty()) return;
  file_.open(path_, std::ios::trunc);
  if (!file_) {
    TFRING_LOG(kWarning) << "TFRING_AUTOTUNE_LOG: cannot write " << path_
                         << " on rank 0: " << std::strerror(errno)
                         << ". The job is tuned without this file";
    return;
  }
  file_ << "step,fusion_threshold_bytes,max_plans_in_flight,piece_bytes,bytes_per_second\n";
}

void TuningLog::Add(const std::vector<TuningRecord>& records) {
  if (records.empty()) return;
  if (!opened_) Open();
  for (const TuningRecord& record : records) {
    const TunedValues& values = record.values;
    const auto rate = static_cast<int64_t>(record.bytes_per_second);
    file_ << StepName(record.step) << "," << values.fusion_threshold_bytes << ","
          << values.max_plans_in_flight << "," << values.piece_bytes << "," << rate << "\n";
    if (record.step != TuningRecord::Step::kKept) continue;
    const auto change = [&](const char* name, int64_t TunedValues::* member) {
      return ChangeText(name, given_.*member, values.*member);
    };
    TFRING_LOG(kInfo) << "autotuning is over and keeps "
                      << change("TFRING_FUSION_THRESHOLD", &TunedValues::fusion_threshold_bytes)
                      << ", "
                      << change("TFRING_X_MAX_PLANS_IN_FLIGHT", &TunedValues::max_plans_in_flight)
                      << ", " << change("TFRING_X_PIECE_BYTES", &TunedValues::piece_bytes)
                      << ", at " << rate << " bytes per second";
  }
  file_.flush();
}

}  // namespace tfring
