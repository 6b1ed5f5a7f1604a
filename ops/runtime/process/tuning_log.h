#ifndef TFRING_OPS_RUNTIME_PROCESS_TUNING_LOG_H_
#define TFRING_OPS_RUNTIME_PROCESS_TUNING_LOG_H_

#include <fstream>
#include <string>
#include <vector>

#include "ops/runtime/protocol/tuning/autotuner.h"

namespace tfring {

// Tells what the autotuner has tried: a line of CSV for each trial, in the file that
// TFRING_AUTOTUNE_LOG names, and in the log what it has kept. Rank 0's control thread; lives for
// one generation.
class TuningLog {
 public:
  // Nothing is written before the first Add. An empty path: no file.
  explicit TuningLog(const Config& config);

  void Add(const std::vector<TuningRecord>& records);

 private:
  void Open();

  const std::string path_;
  const TunedValues given_;
  bool opened_ = false;
  std::ofstream file_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_TUNING_LOG_H_
