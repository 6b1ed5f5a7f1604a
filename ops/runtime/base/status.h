#ifndef TFRING_OPS_RUNTIME_BASE_STATUS_H_
#define TFRING_OPS_RUNTIME_BASE_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "ops/runtime/base/export.h"

namespace tfring {

// The error classes that users see. Each has one meaning, whatever layer it comes from, and maps to
// the tf.errors class of the same name.
enum class StatusCode : uint8_t {
  kOk = 0,
  kCancelled = 1,           // the runtime, here or on a peer, was shut down
  kInvalidArgument = 3,     // this call is wrong on its own
  kDeadlineExceeded = 4,    // stalled for longer than the configured limit
  kResourceExhausted = 8,   // more calls wait than rank 0 has memory for
  kFailedPrecondition = 9,  // ranks disagree, or the runtime is not initialized
  kAborted = 10,            // the step failed, here or on another rank
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,  // a peer was lost
};

TFRING_EXPORT const char* StatusCodeName(StatusCode code);

// Outcome of an operation: a code and, for failures, one sentence for the user. A value type, safe
// to copy between threads.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  TFRING_EXPORT std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status InvalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status DeadlineExceeded(std::string m) {
  return {StatusCode::kDeadlineExceeded, std::move(m)};
}
inline Status ResourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status FailedPrecondition(std::string m) {
  return {StatusCode::kFailedPrecondition, std::move(m)};
}
inline Status Aborted(std::string m) { return {StatusCode::kAborted, std::move(m)}; }
inline Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }

// A value or the reason why there is none. A value type; value() requires ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace tfring

#define TFRING_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    ::tfring::Status tfring_status_ = (expr);        \
    if (!tfring_status_.ok()) return tfring_status_; \
  } while (0)

#endif  // TFRING_OPS_RUNTIME_BASE_STATUS_H_
