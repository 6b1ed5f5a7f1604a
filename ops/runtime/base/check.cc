#include "ops/runtime/base/check.h"

#include <cstdlib>

#include "ops/runtime/base/log.h"

namespace tfring {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": a bug in tfring: not true: " << condition << ": ";
}

CheckFailure::~CheckFailure() {
  Log(LogLevel::kError, stream_.str());
  FlushLog(kSecond);
  std::abort();
}

}  // namespace tfring
