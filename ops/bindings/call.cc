#include "ops/bindings/call.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace tfring {
namespace {

constexpr size_t kAlignment = 64;

Status OutOfMemory(const std::string& name, int64_t bytes) {
  return Internal("tensor '" + name + "': cannot allocate " + std::to_string(bytes) +
                  " bytes of memory on this rank");
}

}  // namespace

Memory AllocateMemory(int64_t bytes) {
  size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  size = (size + kAlignment - 1) / kAlignment * kAlignment;
  return Memory(std::aligned_alloc(kAlignment, size));
}

std::shared_ptr<Call> Call::Start(Request request, Output output, const void* input,
                                  int64_t bytes) {
  std::shared_ptr<Call> call(new Call);
  if (!request.shapes.empty()) call->shape_ = request.shapes[0];
  Memory copy;
  if (input != nullptr) {
    copy = AllocateMemory(bytes);
    if (!copy) {
      call->Finish(OutOfMemory(request.name, bytes));
      return call;
    }
    if (bytes > 0) std::memcpy(copy.get(), input, static_cast<size_t>(bytes));
  }
  call->Submit(std::move(request), output, std::move(copy), bytes);
  return call;
}

void Call::Submit(Request request, Output output, Memory copy, int64_t bytes) {
  LocalCall call;
  const std::shared_ptr<Call> self = shared_from_this();
  if (copy) {
    const bool in_place = output == Output::kInPlace;
    call.buffers.push_back(
        {copy.get(), in_place ? copy.get() : nullptr, bytes, in_place ? bytes : 0});
    (in_place ? result_ : input_) = std::move(copy);
  }
  if (output == Output::kAllocated) {
    call.allocate = [self, name = request.name, element_bytes = DataTypeSize(request.dtype)](
                        int, const Shape& shape) {
      return self->AllocateResult(name, shape, element_bytes);
    };
  }
  call.announce = [self](const std::vector<int64_t>& values) { self->values_ = values; };
  call.done = [self](const Status& status) { self->Finish(status); };
  EnqueueIn(0, std::move(request), std::move(call));
}

Result<void*> Call::AllocateResult(const std::string& name, const Shape& shape,
                                   int64_t element_bytes) {
  const int64_t bytes = NumElements(shape) * element_bytes;
  result_ = AllocateMemory(bytes);
  if (!result_) return OutOfMemory(name, bytes);
  shape_ = shape;
  return result_.get();
}

void Call::Finish(const Status& status) {
  status_ = status;
  input_.reset();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
  }
  changed_.notify_all();
}

bool Call::WaitFor(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return finished_; });
}

}  // namespace tfring
