#ifndef TFRING_OPS_BINDINGS_HANDLE_H_
#define TFRING_OPS_BINDINGS_HANDLE_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "ops/bindings/call.h"

namespace tfring {

// A collective in flight. Used only with the GIL. Python may drop it at any time; the collective
// continues.
class Handle {
 public:
  // The value that Wait returns.
  enum class Yields {
    kNothing,         // None
    kArray,           // the result
    kArrayAndValues,  // (the result, the values as an int64 array)
    kNumber,          // the first value
  };

  // `dtype` is the result's, or None if there is no array.
  Handle(std::shared_ptr<Call> call, pybind11::object dtype, Yields yields)
      : call_(std::move(call)), dtype_(std::move(dtype)), yields_(yields) {}

  // Waits without the GIL and returns the result. Raises CoreError. If a signal handler raises
  // (KeyboardInterrupt), withdraws all calls of this rank and raises that exception.
  pybind11::object Wait();

 private:
  // Ends all waiting calls of this rank, including this one. Runs without the GIL.
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
