#include "ops/runtime/protocol/message/lock_news.h"

namespace tfring {
namespace {

std::string Count(uint64_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string ReasonText(Rank rank, const UnlockReason& reason) {
  const std::string who = "rank " + std::to_string(rank);
  const std::string tensor = "'" + reason.text + "'";
  switch (reason.cause) {
    case UnlockCause::kOtherCall:
      return who + " called " + tensor + ", which is not in it";
    case UnlockCause::kChangedCall:
      return who + " called " + tensor + " with another shape or from another line than in it";
    case UnlockCause::kJoin:
      return who + " joined";
    case UnlockCause::kProcessSets:
      return who + " changed the process sets";
    case UnlockCause::kStepFailed:
      return reason.text.empty() ? "a step failed on " + who : reason.text;
    case UnlockCause::kShutdown:
      return who + " shuts down";
    case UnlockCause::kWaited:
      return who + " waited with " + tensor + " for other ranks for 100 ms or longer";
    case UnlockCause::kIncomplete:
      return who + " had not called " + tensor +
             " 100 ms or longer after its call of another tensor";
    case UnlockCause::kApart:
      return who + " called " + tensor +
             " 5 ms or longer after another tensor of its batch, in 5 rounds in a row";
    case UnlockCause::kFollows:
      break;
  }
  return who + " gave no cause";
}

}  // namespace

const char* UnlockCauseName(UnlockCause cause) {
  switch (cause) {
    case UnlockCause::kFollows:
      return "follows";
    case UnlockCause::kOtherCall:
      return "other_call";
    case UnlockCause::kChangedCall:
      return "changed_call";
    case UnlockCause::kJoin:
      return "join";
    case UnlockCause::kProcessSets:
      return "process_sets";
    case UnlockCause::kStepFailed:
      return "step_failed";
    case UnlockCause::kShutdown:
      return "shutdown";
    case UnlockCause::kWaited:
      return "waited";
    case UnlockCause::kIncomplete:
      return "incomplete";
    case UnlockCause::kApart:
      return "apart";
  }
  return "unknown";
}

std::string NewsText(const LockNews& news) {
  if (!news.over) {
    return "the schedule of " + Count(news.batches, "batch", "batches") + ", " +
           Count(news.tensors, "tensor", "tensors") + " is locked";
  }
  return "the lock of " + Count(news.tensors, "tensor", "tensors") + " ended after " +
         Count(news.rounds, "round", "rounds") + ": " + ReasonText(news.rank, news.reason);
}

}  // namespace tfring
