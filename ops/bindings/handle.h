#ifndef TFRING_OPS_BINDINGS_HANDLE_H_
#define TFRING_OPS_BINDINGS_HANDLE_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "ops/bindings/call.h"

namespace tfring {

// The Python object for a collective that was started and may not have ended. Used under the GIL
// only. Python may drop it at any time; the collective continues.
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

  // Waits without the GIL and returns the result. Raises CoreError, TimeoutError after `timeout`
  // seconds, after which the collective continues, or what the handler of a signal raises, such as
  // KeyboardInterrupt; all calls of this rank that wait are withdrawn then.
  pybind11::object Wait(std::optional<double> timeout);

 private:
  // Ends all calls of this rank that wait, this one among them. Without the GIL.
  void Withdraw();
  pybind11::object TakeResult();
  pybind11::object TakeArray();

  std::shared_ptr<Call> call_;
  pybind11::object dtype_;
  Yields yields_;
  pybind11::object result_;  // null until taken
};

}  // namespace tfring

#endif  // TFRING_OPS_BINDINGS_HANDLE_H_
