#include "ops/kernels/abort_cause.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tensorflow/core/framework/cancellation.h"

namespace tfring {
namespace {

namespace tf = tensorflow;

constexpr size_t kMaxText = 300;
constexpr std::string_view kNode = "{{node ";
constexpr std::string_view kEnd = "}}";

// A key that no node sends on.
const tf::Rendezvous::ParsedKey& UnusedKey() {
  static const auto* const key = [] {
    const std::string device = "/job:localhost/replica:0/task:0/device:CPU:0";
    auto* parsed = new tf::Rendezvous::ParsedKey();
    const absl::Status status = tf::Rendezvous::ParseKey(
        tf::Rendezvous::CreateKey(device, 1, device, "tfring_step", tf::FrameAndIter(0, 0)),
        parsed);
    if (!status.ok()) *parsed = tf::Rendezvous::ParsedKey();
    return parsed;
  }();
  return *key;
}

// The immediate answer of a receive. Shared with the receive: a thread that is aborting the
// rendezvous may answer, and use the manager, after the asker has returned.
class Question {
 public:
  tf::CancellationManager manager;

  void Answer(const absl::Status& outcome) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (open_) answer_ = outcome;
    open_ = false;
  }

  // Ok if there is no answer. Later answers do not count.
  absl::Status TakeAnswer() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
    return answer_;
  }

 private:
  std::mutex mutex_;  // guards the fields below
  bool open_ = true;
  absl::Status answer_;
};

// Removes the functions that TensorFlow names before the text: "{{function_node f}} text".
std::string_view WithoutFunctions(std::string_view text) {
  while (text.substr(0, 2) == "{{") {
    const size_t end = text.find(kEnd);
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + kEnd.size());
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  return text;
}

std::string NodeName(std::string_view text) {
  const size_t begin = text.find(kNode);
  if (begin == std::string_view::npos) return "";
  text.remove_prefix(begin + kNode.size());
  return std::string(text.substr(0, std::min(text.find(kEnd), kMaxText)));
}

}  // namespace

absl::Status AbortCause(tf::RendezvousInterface* rendezvous) {
  if (rendezvous == nullptr) return absl::OkStatus();
  // On an aborted rendezvous a receive ends at once with its error. On any other it waits until it
  // is cancelled. (If it were cancelled first, it would leave an empty queue behind, and TensorFlow
  // would log that as an abort.)
  auto question = std::make_shared<Question>();
  tf::RendezvousInterface::Args args;
  args.cancellation_manager = &question->manager;
  rendezvous->RecvAsync(UnusedKey(), args,
                        [question](const absl::Status& outcome, const auto&, const auto&,
                                   const auto&, bool) { question->Answer(outcome); });
  const absl::Status status = question->TakeAnswer();
  question->manager.StartCancel();
  return status;
}

Status ShortCause(const absl::Status& cause) {
  if (cause.ok()) {
    return Cancelled("it was cancelled; its own log has the cause");
  }
  const std::string_view message(cause.message().data(), cause.message().size());
  const std::string_view text = WithoutFunctions(message);
  std::string line(text.substr(0, std::min(text.find('\n'), kMaxText)));
  const std::string node = NodeName(message);
  if (!node.empty() && line.find(kNode) == std::string::npos) line += " (node " + node + ")";
  // The runtime lacks names for codes that only TensorFlow uses, so TensorFlow names the code.
  return Aborted(absl::StatusCodeToString(cause.code()) + ": " + line);
}

}  // namespace tfring
