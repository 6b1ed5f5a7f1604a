#ifndef TFRING_OPS_RUNTIME_BASE_CHECK_H_
#define TFRING_OPS_RUNTIME_BASE_CHECK_H_

#include <sstream>

#include "ops/runtime/base/export.h"

namespace tfring {

// Collects the message of a failed check; its destructor prints it to stderr and aborts the
// process. Use it through TFRING_CHECK.
class TFRING_EXPORT CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace tfring

// TFRING_CHECK(found) << "plan " << sequence;
//
// For what only a bug of tfring can break, in every build. What peers, users or the system can
// cause is a Status.
#define TFRING_CHECK(condition) \
  if (condition) {              \
  } else                        \
    ::tfring::CheckFailure(__FILE__, __LINE__, #condition).stream()

#endif  // TFRING_OPS_RUNTIME_BASE_CHECK_H_
