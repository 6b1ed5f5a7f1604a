#include "ops/gpu/staging/staging.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "ops/gpu/cuda/stream.h"
#include "ops/runtime/base/clock.h"
#include "ops/runtime/base/signals.h"

namespace tfring {
namespace {

// Copies in flight have this time to end after an abort.
constexpr Duration kAbortLimit = 5 * kSecond;

CuDevicePtr Address(void* memory) { return reinterpret_cast<CuDevicePtr>(memory); }

template <typename T>
void AddOnce(T* item, std::vector<T*>* list) {
  if (std::find(list->begin(), list->end(), item) == list->end()) list->push_back(item);
}

}  // namespace

Staging::Lane::Lane(std::shared_ptr<CudaDevice> of, int64_t kept_bytes)
    : device(std::move(of)),
      pinned(std::make_shared<PinnedMemory>(device, kept_bytes)),
      waiter(device) {}

Status Staging::Lane::Start() {
  for (Direction direction : {&Lane::in, &Lane::out}) {
    Result<CuStream> stream = device->MakeStream();
    if (!stream.ok()) return stream.status();
    this->*direction = *stream;
  }
  return OkStatus();
}

Staging::Staging(CpuQueue cpu, CompletionSink sink, const StagingOptions& options)
    : cpu_(std::move(cpu)),
      sink_(std::move(sink)),
      options_(options),
      progress_(options.patience),
      thread_(StartThread([this] { Loop(); })) {}

Staging::~Staging() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
  lanes_.clear();  // waits for the copies
}

void Staging::Submit(uint64_t place, Collective collective) {
  auto job = std::make_shared<Job>();
  job->place = place;
  job->sequence = collective.sequence;
  job->who = "rank " + std::to_string(collective.members[collective.self]) + ": " + collective.what;
  job->calls = collective.device_calls;
  job->collective = std::move(collective);
  job->layout = LayOut(job->collective);
  progress_.Begin();
  Post([this, job] {
    waiting_[job->place] = job;
    StartWaiting();
  });
}

// Runs on the staging thread. The job with the lowest place waits for no other job: the CPU backend
// runs jobs in that order, so the memory of all others comes back after it. After an abort no job
// takes memory.
void Staging::StartWaiting() {
  const bool stopped = !aborted().ok();
  int64_t in_use = 0;
  for (const auto& [place, bytes] : started_) in_use += bytes;
  while (!waiting_.empty()) {
    const JobPtr job = waiting_.begin()->second;
    const bool first = started_.empty() || job->place < started_.begin()->first;
    if (!stopped && !first && in_use + job->layout.bytes > options_.most_bytes) return;
    waiting_.erase(waiting_.begin());
    started_[job->place] = job->layout.bytes;
    in_use += job->layout.bytes;
    Begin(job);
  }
}

// Any thread. The job's CPU memory has been returned.
void Staging::Forget(const JobPtr& job) {
  Post([this, place = job->place] {
    started_.erase(place);
    StartWaiting();
  });
}

void Staging::Abort(const Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (limit_) return;
    aborted_ = why;
    limit_ = MonotonicNow() + kAbortLimit;
    for (auto& [device, lane] : lanes_) lane->waiter.EndBy(*limit_, why);
  }
  Post([this] { StartWaiting(); });
}

// Runs on the staging thread.
void Staging::Begin(const JobPtr& job) {
  std::vector<Lane*> used;
  job->status = aborted();
  if (job->status.ok()) {
    Try(job, [&] { return CopyIn(job, &used); });
  }
  AfterAll(job, used, &Lane::in, &Staging::OnCpu);
}

void Staging::Try(const JobPtr& job, const std::function<Status()>& copy) {
  try {
    job->status = copy();
  } catch (const std::exception& error) {
    job->status = ResourceExhausted(std::string("no memory to copy it (") + error.what() +
                                    "); use smaller tensors or buckets");
  }
}

Status Staging::CopyIn(const JobPtr& job, std::vector<Lane*>* used) {
  if (job->layout.bytes == 0) return OkStatus();
  Result<Lane*> first = LaneOf(*job, 0);
  if (!first.ok()) return first.status();
  Result<std::shared_ptr<void>> memory = (*first)->pinned->Take(job->layout.bytes);
  if (!memory.ok()) {
    return Status(memory.status().code(),
                  memory.status().message() + "; use smaller tensors or buckets");
  }
  job->memory = std::move(*memory);
  char* const bytes = static_cast<char*>(job->memory.get());
  size_t waited = SIZE_MAX;
  for (const StagedCopy& copy : job->layout.in) {
    Result<Lane*> lane = LaneOf(*job, copy.call);
    if (!lane.ok()) return lane.status();
    AddOnce(*lane, used);
    if (waited != copy.call) {
      TFRING_RETURN_IF_ERROR(CudaStream::Of(job->calls[copy.call]).LetWait((*lane)->in));
      waited = copy.call;
    }
    CudaDevice& device = *(*lane)->device;
    const ScopedContext current(&device);
    TFRING_RETURN_IF_ERROR(current.status());
    TFRING_RETURN_IF_ERROR(
        device.Check(device.cu().MemcpyDtoHAsync(bytes + copy.at, Address(copy.device),
                                                 static_cast<size_t>(copy.bytes), (*lane)->in),
                     "copying from the GPU"));
  }
  return OkStatus();
}

// The inputs are in CPU memory, or their copies failed. Runs on a waiter's or the staging thread.
void Staging::OnCpu(const JobPtr& job) {
  progress_.Step();
  if (job->status.ok()) job->status = aborted();
  Explain(job.get());
  if (!job->status.ok()) {
    // Fail the CPU backend first: later collectives here would match this one on the other ranks.
    cpu_.fail(job->status);
    cpu_.give_up(job->place);
    return End(job);
  }
  MoveToCpu(job->layout, static_cast<char*>(job->memory.get()), &job->collective);
  cpu_.run(job->place, std::move(job->collective),
           [this, job](Completion completion) { OnRun(job, std::move(completion)); });
}

// Runs on a thread of the CPU backend.
void Staging::OnRun(const JobPtr& job, Completion completion) {
  progress_.Step();
  if (!completion.status.ok() || job->layout.out.empty()) {
    return Report(job, std::move(completion));
  }
  job->bad_values = std::move(completion.bad_values);
  Post([this, job] { Finish(job); });
}

// Runs on the staging thread.
void Staging::Finish(const JobPtr& job) {
  std::vector<Lane*> used;
  Try(job, [&] { return CopyOut(job, &used); });
  if (job->status.ok()) {
    Completion launched;
    launched.sequence = job->sequence;
    launched.stage = CompletionStage::kLaunched;
    launched.bad_values = std::exchange(job->bad_values, {});
    sink_(std::move(launched));
  }
  AfterAll(job, used, &Lane::out, &Staging::End);
}

Status Staging::CopyOut(const JobPtr& job, std::vector<Lane*>* used) {
  const char* const bytes = static_cast<const char*>(job->memory.get());
  const std::vector<StagedCopy>& copies = job->layout.out;
  for (size_t i = 0; i < copies.size(); ++i) {
    const StagedCopy& copy = copies[i];
    Result<Lane*> lane = LaneOf(*job, copy.call);
    if (!lane.ok()) return lane.status();
    AddOnce(*lane, used);
    const DeviceCall& call = job->calls[copy.call];
    if (i == 0 || copies[i - 1].call != copy.call) {
      TFRING_RETURN_IF_ERROR(CudaStream::Of(call).LetWait((*lane)->out));
    }
    CudaDevice& device = *(*lane)->device;
    {
      const ScopedContext current(&device);
      TFRING_RETURN_IF_ERROR(current.status());
      TFRING_RETURN_IF_ERROR(
          device.Check(device.cu().MemcpyHtoDAsync(Address(copy.device), bytes + copy.at,
                                                   static_cast<size_t>(copy.bytes), (*lane)->out),
                       "copying to the GPU"));
    }
    const bool last = i + 1 == copies.size() || copies[i + 1].call != copy.call;
    if (!last || !call.early) continue;
    Result<std::shared_ptr<CudaEvent>> there = device.Record((*lane)->out);
    if (!there.ok()) return there.status();
    CudaStream::Of(call).SetResults(std::move(*there));
  }
  return OkStatus();
}

// Calls `then` when each lane's stream has finished its present work, and at once without lanes.
void Staging::AfterAll(const JobPtr& job, const std::vector<Lane*>& lanes, Direction stream,
                       Then then) {
  if (lanes.empty()) return (this->*then)(job);
  job->waits = static_cast<int>(lanes.size());
  struct InUse {
    std::shared_ptr<void> memory;
    std::vector<DeviceCall> calls;
  };
  const auto used = std::make_shared<InUse>(InUse{job->memory, job->calls});
  for (Lane* lane : lanes) {
    const auto answer = [this, job, then](const DeviceOutcome& outcome) {
      {
        std::lock_guard<std::mutex> lock(job->mutex);
        if (job->status.ok()) job->status = outcome.status;
        if (--job->waits > 0) return;
      }
      (this->*then)(job);
    };
    lane->waiter.After(lane->*stream, answer, used);
  }
}

// The device no longer uses the memory, or its waiter keeps it.
void Staging::End(const JobPtr& job) {
  Explain(job.get());
  Completion completion;
  completion.status = job->status;
  completion.bad_values = std::move(job->bad_values);
  Report(job, std::move(completion));
}

void Staging::Report(const JobPtr& job, Completion completion) {
  completion.sequence = job->sequence;
  completion.stage = CompletionStage::kEnded;
  job->memory.reset();
  job->calls.clear();
  job->collective = Collective();
  Forget(job);
  progress_.End();
  sink_(std::move(completion));
}

// Runs on the staging thread. Returns the lane of the call's device; makes it for the first call.
Result<Staging::Lane*> Staging::LaneOf(const Job& job, size_t call) {
  const std::shared_ptr<CudaDevice>& device = CudaStream::Of(job.calls[call]).device();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = lanes_.find(device.get());
    if (it != lanes_.end()) return it->second.get();
  }
  auto lane = std::make_unique<Lane>(device, options_.most_bytes);
  TFRING_RETURN_IF_ERROR(lane->Start());
  std::lock_guard<std::mutex> lock(mutex_);
  if (limit_) lane->waiter.EndBy(*limit_, aborted_);
  return (lanes_[device.get()] = std::move(lane)).get();
}

// A failure after an abort is an effect of the abort.
void Staging::Explain(Job* job) const {
  Status& status = job->status;
  if (status.ok()) return;
  const Status why = aborted();
  status = why.ok() ? Status(status.code(), job->who + ": " + status.message()) : why;
}

Status Staging::aborted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

int64_t Staging::wakeups() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t sum = wakeups_.load(std::memory_order_relaxed);
  for (const auto& [device, lane] : lanes_) sum += lane->waiter.wakeups();
  return sum;
}

void Staging::Post(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Staging::Loop() {
  pthread_setname_np(pthread_self(), "tfring-staging");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!tasks_.empty() || !stopping_) {
    if (tasks_.empty()) {
      changed_.wait(lock);
      wakeups_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace tfring
