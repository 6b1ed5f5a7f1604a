#include "ops/bindings/handle.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "ops/bindings/errors.h"
#include "ops/runtime/process/process_runtime.h"

namespace tfring {
namespace {

namespace py = pybind11;

// A waiting thread looks for Ctrl-C at this interval.
constexpr std::chrono::milliseconds kWaitSlice{50};
// The wait for the end of a withdrawn call is limited: rank 0 may be gone.
constexpr std::chrono::milliseconds kWithdrawLimit{2000};

}  // namespace

py::object Handle::Wait() {
  while (true) {
    bool finished;
    {
      py::gil_scoped_release release;
      finished = call_->WaitFor(kWaitSlice);
    }
    if (finished) break;
    if (PyErr_CheckSignals() != 0) {
      py::error_already_set error;  // the signal handler's, such as KeyboardInterrupt
      Withdraw();
      throw error;
    }
  }
  // A signal that ended the call comes first: raise KeyboardInterrupt, not the resulting error.
  if (!call_->status().ok() && PyErr_CheckSignals() != 0) throw py::error_already_set();
  RaiseIfError(call_->status());
  if (!result_) result_ = TakeResult();
  return result_;
}

void Handle::Withdraw() {
  py::gil_scoped_release release;
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current();
  if (runtime.ok()) (*runtime)->CancelCalls(Aborted("interrupted (Ctrl-C, SIGINT)"));
  call_->WaitFor(kWithdrawLimit);
}

py::object Handle::TakeResult() {
  const std::vector<int64_t>& values = call_->values();
  switch (yields_) {
    case Yields::kArray:
      return TakeArray();
    case Yields::kArrayAndValues:
      return py::make_tuple(
          TakeArray(),
          py::array_t<int64_t>(static_cast<py::ssize_t>(values.size()), values.data()));
    case Yields::kNumber:
      return values.empty() ? py::object(py::none()) : py::object(py::int_(values[0]));
    case Yields::kNothing:
      break;
  }
  return py::none();
}

py::object Handle::TakeArray() {
  Memory memory = call_->TakeResult();
  void* data = memory.get();
  py::capsule owner(memory.release(), [](void* pointer) { std::free(pointer); });
  const Shape& shape = call_->shape();
  return py::array(py::reinterpret_borrow<py::dtype>(dtype_),
                   std::vector<py::ssize_t>(shape.begin(), shape.end()), data, owner);
}

}  // namespace tfring
