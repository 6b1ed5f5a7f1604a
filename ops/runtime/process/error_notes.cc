#include "ops/runtime/process/error_notes.h"

#include <cstring>
#include <utility>

namespace tfring {
namespace {

bool ConcernsSeveralRanks(StatusCode code) {
  switch (code) {
    case StatusCode::kCancelled:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kInternal:
    case StatusCode::kUnavailable:
      return true;
    default:  // what is wrong with one call, or the cause of a failed step: the message has it all
      return false;
  }
}

void AddSentence(const std::string& sentence, std::string* text) {
  if (sentence.empty()) return;
  const bool ended = !text->empty() && std::strchr(".?!", text->back()) != nullptr;
  *text += (ended ? " " : ". ") + sentence;
}

}  // namespace

void ErrorNotes::Set(std::string note, std::string stall) {
  std::lock_guard<std::mutex> lock(mutex_);
  note_ = std::move(note);
  stall_ = std::move(stall);
}

Status ErrorNotes::Added(Status status) const {
  if (!ConcernsSeveralRanks(status.code())) return status;
  std::string text = status.message();
  std::lock_guard<std::mutex> lock(mutex_);
  if (status.code() == StatusCode::kDeadlineExceeded) AddSentence(stall_, &text);
  AddSentence(note_, &text);
  return Status(status.code(), std::move(text));
}

}  // namespace tfring
