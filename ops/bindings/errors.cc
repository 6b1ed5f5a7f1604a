#include "ops/bindings/errors.h"

namespace tfring {
namespace py = pybind11;
namespace {

// Set once at import and kept as long as the process, like the module itself.
PyObject* core_error = nullptr;

}  // namespace

void DefineCoreError(py::module_& module) {
  core_error = PyErr_NewExceptionWithDoc(
      "tfring._lib._core.CoreError",
      "An error of the runtime: `code` is its status code (int), `message` what happened.",
      PyExc_RuntimeError, nullptr);
  if (core_error == nullptr) throw py::error_already_set();
  module.attr("CoreError") = py::handle(core_error);
}

void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  py::object error = py::reinterpret_borrow<py::object>(core_error)(
      std::string(StatusCodeName(status.code())) + ": " + status.message());
  error.attr("code") = static_cast<int>(status.code());
  error.attr("message") = status.message();
  PyErr_SetObject(core_error, error.ptr());
  throw py::error_already_set();
}

}  // namespace tfring
