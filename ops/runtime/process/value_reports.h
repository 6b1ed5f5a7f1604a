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

// What the tensors of a collective are to the program.
struct TensorNames {
  std::vector<std::string> variables;  // whose gradients they are
  // They are multiplied by a loss scale that is lowered until they are finite: infinities now and
  // then are how it finds its value.
  bool loss_scaled = false;
};

// From now on, until the process ends, reports name the tensors of the collective of this name so.
// Any thread.
TFRING_EXPORT void NameTensors(const std::string& collective, TensorNames names);

// Says where NaN and infinities come from: a warning and an event of the record, once for each
// name, because from the first step on they are in all that follows. Thread-safe; lives for one
// generation.
class ValueReports {
 public:
  // `recorder` may be null.
  ValueReports(Rank rank, ValueAction action, Recorder* recorder)
      : rank_(rank), action_(action), recorder_(recorder) {}

  // Not OK if the call is to fail with it.
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
