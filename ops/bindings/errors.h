#ifndef TFRING_OPS_BINDINGS_ERRORS_H_
#define TFRING_OPS_BINDINGS_ERRORS_H_

#include <pybind11/pybind11.h>

#include "ops/runtime/base/status.h"

namespace tfring {

// Adds the exception class CoreError(RuntimeError) with attributes `code` (int, a StatusCode) and
// `message` to the module.
void DefineCoreError(pybind11::module_& module);

// Raises CoreError unless the status is ok. Needs the GIL.
void RaiseIfError(const Status& status);

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_ERRORS_H_
