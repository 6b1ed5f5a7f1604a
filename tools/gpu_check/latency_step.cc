// How soon the host knows that a stream has done its work, by every way that there is, and what a
// host function costs the stream.

#include <condition_variable>
#include <mutex>

#include "ops/gpu/cuda/device_waiter.h"
#include "tools/gpu_check/steps.h"

namespace tfring::gpu_check {
namespace {

constexpr unsigned kBlockingSync = 1;  // of cuEventCreate: a thread that waits sleeps
constexpr unsigned kNoTiming = 2;

// Set on one thread, waited for on another.
class Flag {
 public:
  void Set() {
    std::lock_guard<std::mutex> lock(mutex_);
    set_ = true;
    changed_.notify_one();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return set_; });
    set_ = false;
  }
  static void SetIt(void* flag) { static_cast<Flag*>(flag)->Set(); }
  static void Nothing(void*) {}

 private:
  std::mutex mutex_;  // guards set_
  std::condition_variable changed_;
  bool set_ = false;
};

// A stream with work, and one beside it.
class Waits {
 public:
  Waits(const Options& options, Report* report)
      : gpu_(options, 0),
        times_(options.fakes ? 20 : 500),
        memory_(reinterpret_cast<CuDevicePtr>(gpu_.Allocate(kBytes))),
        side_(Require(gpu_.device()->MakeStream())),
        report_(report) {
    gpu_.Check(gpu_.cu().EventCreate(&event_, kBlockingSync | kNoTiming), "making an event");
    gpu_.DeviceTimeOf([this] { Work(); });  // the first use of anything is slow
  }

  Gpu& gpu() { return gpu_; }

  void Work() {
    gpu_.Check(gpu_.cu().MemsetD8Async(memory_, 1, kBytes, gpu_.stream()), "setting memory");
  }
  void Record() { gpu_.Check(gpu_.cu().EventRecord(event_, gpu_.stream()), "recording an event"); }
  void HostFunction(CuStream stream, CuHostFunction function) {
    gpu_.Check(gpu_.cu().LaunchHostFunc(stream, function, &flag_), "adding a host function");
  }
  void OnSide(CuHostFunction function) {
    Record();
    gpu_.Check(gpu_.cu().StreamWaitEvent(side_, event_, 0), "waiting for an event");
    HostFunction(side_, function);
  }
  CuEvent event() const { return event_; }
  Flag& flag() { return flag_; }

  // The time from giving the stream work until `wait` has returned.
  void Latency(const std::string& name, const std::function<void()>& wait) {
    std::vector<double> seconds;
    for (int i = 0; i < times_; ++i) {
      const double start = Seconds();
      Work();
      wait();
      seconds.push_back(Seconds() - start);
    }
    report_->Add(name + "_us", Quantile(seconds, 0.5) * 1e6);
    report_->Add(name + "_us_95", Quantile(seconds, 0.95) * 1e6);
  }

  // What `after` adds to the time of each piece of work on the stream, one after the other.
  void Bubble(const std::string& name, const std::function<void()>& after) {
    const auto all = [this](const std::function<void()>& then) {
      return gpu_.DeviceTimeOf([&] {
        for (int i = 0; i < times_; ++i) {
          Work();
          then();
        }
      });
    };
    const double alone = all([] {});
    report_->Add(name + "_us", (all(after) - alone) / times_ * 1e6);
  }

 private:
  static constexpr size_t kBytes = 1 << 20;

  Gpu gpu_;
  const int times_;
  const CuDevicePtr memory_;
  const CuStream side_;
  Report* const report_;
  CuEvent event_ = nullptr;
  Flag flag_;
};

}  // namespace

void Latency(const Options& options, Report* report) {
  Waits waits(options, report);
  Gpu& gpu = waits.gpu();
  waits.Latency("poll_event", [&] { gpu.Wait(); });
  waits.Latency("stream_synchronize", [&] {
    gpu.Check(gpu.more().StreamSynchronize(gpu.stream()), "waiting for a stream");
  });
  waits.Latency("blocking_event", [&] {
    waits.Record();
    gpu.Check(gpu.more().EventSynchronize(waits.event()), "waiting for an event");
  });
  waits.Latency("host_function", [&] {
    waits.HostFunction(gpu.stream(), Flag::SetIt);
    waits.flag().Wait();
  });
  waits.Latency("host_function_on_side", [&] {
    waits.OnSide(Flag::SetIt);
    waits.flag().Wait();
  });
  {
    DeviceWaiter waiter(gpu.device());
    Status status;
    waits.Latency("runtime", [&] {
      waiter.After(gpu.stream(), [&](const DeviceOutcome& outcome) {
        status = outcome.status;
        waits.flag().Set();
      });
      waits.flag().Wait();
      Require(status);
    });
  }
  waits.Bubble("bubble_of_host_function", [&] { waits.HostFunction(gpu.stream(), Flag::Nothing); });
  waits.Bubble("bubble_of_side_stream", [&] { waits.OnSide(Flag::Nothing); });
  gpu.Wait();
}

}  // namespace tfring::gpu_check
