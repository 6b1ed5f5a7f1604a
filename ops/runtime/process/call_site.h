#ifndef TFRING_OPS_RUNTIME_PROCESS_CALL_SITE_H_
#define TFRING_OPS_RUNTIME_PROCESS_CALL_SITE_H_

#include <string>

#include "ops/runtime/base/export.h"
#include "ops/runtime/protocol/message/request.h"

namespace tfring {

// Where the user's program is, for a call that this thread is about to make from Python. Eager ops
// take it from here and not from an attribute: TensorFlow keeps a kernel for each combination of
// attributes that it has seen, and a program has many lines. Ops of graphs have the attribute.
struct CallSite {
  std::string line;      // "train.py:40"; empty: unknown
  bool unnamed = false;  // see Request
};

// For the next call of this thread.
TFRING_EXPORT void SetCallSite(CallSite site);

// Completes a request that says nothing of its call site; uses up what was set.
TFRING_EXPORT void AddCallSite(Request* request);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROCESS_CALL_SITE_H_
