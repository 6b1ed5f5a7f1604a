#include "ops/xla/started_calls.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "ops/runtime/base/log.h"
#include "ops/runtime/base/text.h"

namespace tfring {
namespace {

// Moves the call to the stream; `shapes` and buffers are set.
Status UseStream(uint64_t generation, void* stream, LocalCall* call) {
  const Result<std::shared_ptr<RankRuntime>> runtime = ProcessRuntime::Get().Current(generation);
  if (!runtime.ok()) return runtime.status();
  Result<std::shared_ptr<DeviceStream>> wrapped = (*runtime)->WrapStream(stream);
  if (!wrapped.ok()) return wrapped.status();
  call->stream = *std::move(wrapped);
  call->early = true;
  // XLA has already allocated all memory of the program.
  return call->stream->MarkReady();
}

// Returns an object to hold; `released` is set when its last holder is gone.
std::shared_ptr<void> Token(std::shared_future<void>* released) {
  auto promise = std::make_unique<std::promise<void>>();
  *released = promise->get_future().share();
  return std::shared_ptr<void>(promise.release(), [](void* held) {
    std::unique_ptr<std::promise<void>> last(static_cast<std::promise<void>*>(held));
    last->set_value();
  });
}

}  // namespace

StartedCall::StartedCall(std::string what, uint64_t run, std::shared_ptr<DeviceStream> stream,
                         std::shared_future<Status> launched, std::shared_future<void> unused)
    : what_(std::move(what)),
      run_(run),
      stream_(std::move(stream)),
      launched_(std::move(launched)),
      unused_(std::move(unused)) {}

StartedCall StartedCall::Enqueue(void* stream, Request request, LocalCall call) {
  StartedCall started;
  started.what_ = Describe(request);
  for (const TensorBuffer& buffer : call.buffers) started.outputs_.push_back(buffer.output);
  const StepRun run = StepPrograms::Get().Surrounding();
  const Status usable = UseStream(run.generation, stream, &call);
  if (!usable.ok()) {
    call = LocalCall();
    Refuse(InvalidArgument(started.what_ + ": " + usable.message()), &request);
  }
  started.run_ = call.run = run.number;
  call.keeps = Token(&started.unused_);
  started.stream_ = call.stream;
  auto launched = std::make_shared<std::promise<Status>>();
  started.launched_ = launched->get_future().share();
  call.done = [launched](const Status& outcome) { launched->set_value(outcome); };
  EnqueueIn(run.generation, std::move(request), std::move(call));
  return started;
}

Status StartedCall::WaitForLaunch() const {
  Status outcome = launched_.get();
  if (outcome.ok()) outcome = stream_->WaitForResults();
  if (!outcome.ok()) StepPrograms::Get().OnProgramFailed(run_);
  return outcome;
}

void StartedCall::WaitForMemory(Duration limit) const {
  if (unused_.wait_for(std::chrono::nanoseconds(limit)) == std::future_status::ready) return;
  Log(LogLevel::kError,
      what_ + " failed, and the GPU still uses its memory " + SecondsText(limit) +
          " later. XLA gives that memory to other tensors, so this process ends. " +
          "Look for what keeps the GPU busy, or start the job again from its last checkpoint");
  FlushLog(kSecond);
  std::abort();
}

void StartedCall::WaitUntilSafe() const {
  if (!WaitForLaunch().ok()) WaitForMemory();
}

StartedCalls& StartedCalls::Get() {
  static StartedCalls* const calls = [] {
    auto* const made = new StartedCalls();
    StepPrograms::Get().SetPrograms(made);
    return made;
  }();
  return *calls;
}

void StartedCalls::AbandonEarlier(void* stream, ProcessSetId process_set, const std::string& name) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (calls_.count(Key(Here(stream), process_set, name)) == 0) return;
  }
  AbandonAll(stream);
}

void StartedCalls::Add(void* stream, ProcessSetId process_set, const std::string& name,
                       StartedCall call) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.insert_or_assign(Key(Here(stream), process_set, name), std::move(call));
}

std::unique_ptr<StartedCall> StartedCalls::Take(void* stream, ProcessSetId process_set,
                                                const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(Key(Here(stream), process_set, name));
  if (found == calls_.end()) return nullptr;
  auto taken = std::make_unique<StartedCall>(std::move(found->second));
  calls_.erase(found);
  return taken;
}

void StartedCalls::AbandonAll(void* stream) {
  std::vector<StartedCall> abandoned;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = calls_.begin(); it != calls_.end();) {
      if (std::get<0>(it->first) != Here(stream)) {
        ++it;
        continue;
      }
      abandoned.push_back(std::move(it->second));
      it = calls_.erase(it);
    }
  }
  for (const StartedCall& call : abandoned) call.WaitUntilSafe();
}

void StartedCalls::WaitForRun(uint64_t run) {
  std::vector<StartedCall> started;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, call] : calls_) {
      if (call.run() == run) started.push_back(call);
    }
  }
  for (const StartedCall& call : started) call.WaitUntilSafe();
}

}  // namespace tfring
