#ifndef TFRING_OPS_RUNTIME_PROCESS_VALUE_REPORTS_H_
#define TFRING_OPS_RUNTIME_PROCESS_VALUE_REPORTS_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/config.h"
#include "ops/runtime/base/export.h"
#include "ops/runtime/base/status.h"
#include "ops/runtime/process/call_table.h"
#include "ops/runtime/recorder/recorder.h"

namespace tfring {

// What the program uses the tensors of a collective for.
struct TensorNames {
  std::vector<std::string> variables;  // whose gradients they are
  // They are multiplied by a loss scale, which the program lowers until they are finite. So
  // infinities now and then are normal.
  bool loss_scaled = false;
};

// Sets the names that reports use for the tensors of this collective, until the process ends. Any
// thread.
TFRING_EXPORT void NameTensors(const std::string& collective, TensorNames names);

// Reports where NaN and infinities come from: a warning and an event in the record, once for each
// name, because after the first bad step all later steps have them. Thread-safe; lives for one
// generation.
class ValueReports {
 public:
  // `recorder` may be null.
  ValueReports(Rank rank, ValueAction action, Recorder* recorder)
      : rank_(rank), action_(action), recorder_(recorder) {}

  // Not OK if the call should fail with this status.
  Status Report(const BadCall& call);

 private:
  std::string TextOf(const BadCall& call, const TensorNames& names) const;

  const Rank rank_;
  const ValueAction action_;
  Recorder* const recorder_;
  std::mutex mutex_;  // guards reported_
  std::set<std::pair<ProcessSetId, std::string>> reported_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_VALUE_REPORTS_H_
