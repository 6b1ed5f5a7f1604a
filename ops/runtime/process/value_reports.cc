#include "ops/runtime/process/value_reports.h"

#include <algorithm>
#include <unordered_map>

#include "ops/runtime/base/log.h"
#include "ops/runtime/base/types.h"

namespace tfring {
namespace {

// Of one call.
constexpr size_t kMaxTensorsNamed = 3;
// A program that makes up a new name for each call must not fill the log.
constexpr size_t kMaxReports = 64;

struct Registry {
  std::mutex mutex;  // guards names
  std::unordered_map<std::string, TensorNames> names;
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry();  // calls may end while the process does
  return *registry;
}

TensorNames NamesOf(const std::string& collective) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto found = registry.names.find(collective);
  return found == registry.names.end() ? TensorNames() : found->second;
}

// "3 NaN and 1 Inf".
std::string CountsText(const BadValues& bad) {
  const std::string nans = bad.nans > 0 ? std::to_string(bad.nans) + " NaN" : "";
  if (bad.infinities == 0) return nans;
  return (nans.empty() ? "" : nans + " and ") + std::to_string(bad.infinities) + " Inf";
}

// "the gradient of 'dense/kernel'", or "tensor 2".
std::string TensorText(const BadValues& bad, const TensorNames& names) {
  if (bad.buffer < names.variables.size()) {
    return "the gradient of '" + names.variables[bad.buffer] + "'";
  }
  return "tensor " + std::to_string(bad.buffer);
}

}  // namespace

void NameTensors(const std::string& collective, TensorNames names) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.names[collective] = std::move(names);
}

std::string ValueReports::TextOf(const BadCall& call, const TensorNames& names) const {
  std::string text = "rank " + std::to_string(rank_) + ": ";
  const size_t named = std::min(call.tensors.size(), kMaxTensorsNamed);
  for (size_t i = 0; i < named; ++i) {
    const BadValues& bad = call.tensors[i];
    text += (i > 0 ? ", " : "") + TensorText(bad, names) + " holds " + CountsText(bad) + " in " +
            std::to_string(bad.elements) + " " + DataTypeName(bad.dtype) + " values";
  }
  const size_t more = call.tensors.size() - named;
  if (more > 0) text += ", and " + std::to_string(more) + " more such tensors follow";
  text += ", before they are added to those of the other ranks. Collective '" + call.name + "'";
  if (!call.call_site.empty()) text += " (" + call.call_site + ")";
  if (call.invocation > 0) text += ", call " + std::to_string(call.invocation);
  const int64_t step = recorder_ == nullptr ? -1 : recorder_->header().step.load();
  if (step >= 0) text += ", step " + std::to_string(step);
  return text;
}

Status ValueReports::Report(const BadCall& call) {
  const TensorNames names = NamesOf(call.name);
  const bool fails = action_ == ValueAction::kError && !names.loss_scaled;
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    first = reported_.size() < kMaxReports && reported_.emplace(call.process_set, call.name).second;
  }
  if (!first && !fails) return OkStatus();
  std::string text = TextOf(call, names);
  if (names.loss_scaled) {
    text += ". With a loss scale this is no mistake, as long as it is rare";
  } else {
    text += ". The sum holds them on every rank; see `tfring help values`";
  }
  if (first && recorder_ != nullptr) {
    int64_t count = 0;
    for (const BadValues& bad : call.tensors) count += bad.nans + bad.infinities;
    recorder_->Event(EventType::kBadValues, StatusCode::kOk, count, text);
  }
  if (fails) return InvalidArgument(text + " (TFRING_CHECK_VALUES=error)");
  if (!names.loss_scaled) Log(LogLevel::kWarning, text);
  return OkStatus();
}

}  // namespace tfring
