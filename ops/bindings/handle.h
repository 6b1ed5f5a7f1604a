#ifndef TFRING_OPS_BINDINGS_HANDLE_H_
#define TFRING_OPS_BINDINGS_HANDLE_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "ops/bindings/call.h"

namespace tfring {

// A collective on its way, as Python sees it. Used under the GIL only; lives as long as Python
// holds it, and the collective goes on without it.
class Handle {
 public:
  // What `wait` returns.
  enum class Yields {
    kNothing,         // None
    kArray,           // the result
    kArrayAndValues,  // (the result, the values as an int64 array)
    kNumber,          // the first value
  };

  // `dtype` is that of the result, or None where there is no array.
  Handle(std::shared_ptr<Call> call, pybind11::object dtype, Yields yields)
      : call_(std::move(call)), dtype_(std::move(dtype)), yields_(yields) {}

  // True when the collective has ended.
  bool Done();

  // The result. Releases the GIL; Ctrl-C raises and leaves the collective running on its own
  // copies. Raises CoreError, or TimeoutError after `timeout` seconds.
  pybind11::object Wait(std::optional<double> timeout);

 private:
  pybind11::object TakeResult();
  pybind11::object TakeArray();

  std::shared_ptr<Call> call_;
  pybind11::object dtype_;
  Yields yields_;
  pybind11::object result_;  // null until taken
};

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_HANDLE_H_
