#ifndef TFRING_OPS_RUNTIME_TRANSPORT_UNIQUE_FD_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

#include "ops/runtime/transport/fork_guard.h"

namespace tfring {

// Owns one descriptor and closes it, here and in forked children. Movable; not thread-safe. A
// descriptor beyond the fork guard's table is still owned, only not closed in children.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {
    if (fd_ >= 0) (void)ForkGuard::Track(fd_).ok();
  }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset() {
    if (fd_ < 0) return;
    // In this order: the number may be given to another descriptor as soon as it is closed.
    ForkGuard::Untrack(fd_);
    close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_UNIQUE_FD_H_
