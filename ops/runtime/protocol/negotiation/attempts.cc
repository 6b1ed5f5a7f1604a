#include "ops/runtime/protocol/negotiation/attempts.h"

namespace tfring {
namespace {

constexpr size_t kMaxCauseBytes = 2048;

}  // namespace

Status StepFailed(const std::string& what, const std::string& why) {
  return Aborted(what + " was given up: " + why +
                 ". A step that fails on one rank fails on all; what was still waiting has moved "
                 "no data. Once every rank has caught its error, the next step works");
}

std::string CauseText(const Status& cause) {
  std::string text = cause.ToString();
  if (text.size() > kMaxCauseBytes) text = text.substr(0, kMaxCauseBytes) + " ...";
  return text;
}

}  // namespace tfring
