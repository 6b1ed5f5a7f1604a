#include "ops/runtime/backend/routing_backend.h"

#include <utility>

namespace tfring {

// Leads from places to the backend until that is destroyed: a thread that hung in a device's
// library is left alone, and may come back with a place in its hands.
struct RoutingBackend::Link {
  explicit Link(RoutingBackend* owner) : owner(owner) {}
  std::mutex mutex;       // guards owner, and the owner's life while it is used
  RoutingBackend* owner;  // null: destroyed
};

// A place that the device backend has reserved. Without effect once the owner is destroyed.
class RoutingBackend::Place final : public CpuPlace {
 public:
  explicit Place(RoutingBackend* owner) : link_(owner->link_), number_(owner->places_.Take()) {}
  ~Place() override {
    std::lock_guard<std::mutex> lock(link_->mutex);
    if (number_ != 0 && link_->owner != nullptr) link_->owner->places_.GiveUp(number_);
  }

  void Run(Collective collective, std::function<void(Completion)> ended) override {
    {
      std::lock_guard<std::mutex> lock(link_->mutex);
      const uint64_t number = std::exchange(number_, 0);
      if (link_->owner != nullptr) {
        return link_->owner->places_.Run(number, std::move(collective), std::move(ended));
      }
    }
    Completion closed;
    closed.sequence = collective.sequence;
    closed.status = Cancelled("the backend was closed");
    ended(std::move(closed));
  }
  void Stage(Collective collective) override {
    std::lock_guard<std::mutex> lock(link_->mutex);
    const uint64_t number = std::exchange(number_, 0);
    if (link_->owner != nullptr) link_->owner->Stage(number, std::move(collective));
  }

 private:
  const std::shared_ptr<Link> link_;
  uint64_t number_;  // 0: used
};

RoutingBackend::RoutingBackend(const MakeCpu& make_cpu, MakeStaging make_staging,
                               MakeDevice make_device, CompletionSink sink)
    : make_staging_(std::move(make_staging)),
      make_device_(std::move(make_device)),
      sink_(std::move(sink)),
      link_(std::make_shared<Link>(this)),
      places_(sink_),
      cpu_(make_cpu(
          [this](Completion completion) { places_.OnCompletion(std::move(completion)); })) {
  places_.SetBackend(cpu_.get());
}

// In this order: the device backend uses places, and what is staged ends when the CPU backend has
// ended it and its copies are through.
RoutingBackend::~RoutingBackend() {
  Abort(Cancelled("the backend was closed"));
  {
    std::lock_guard<std::mutex> lock(fail_mutex_);
    closing_ = true;  // the backends that it would abort end now
  }
  std::unique_ptr<CollectiveBackend> device;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    device.swap(device_);
  }
  device.reset();
  {
    std::lock_guard<std::mutex> lock(link_->mutex);
    link_->owner = nullptr;
  }
  places_.SetBackend(nullptr);
  cpu_.reset();
  staging_.reset();
}

void RoutingBackend::Submit(Collective collective) {
  if (collective.device_calls.empty() && collective.path == DataPath::kCpu) {
    return places_.Submit(std::move(collective));
  }
  if (collective.path == DataPath::kDevice && make_device_) {
    const Result<CollectiveBackend*> device = Device();
    if (device.ok()) return (*device)->Submit(std::move(collective));
    Abort(device.status());
    return Report(collective.sequence, device.status());
  }
  if (collective.device_calls.empty()) return places_.Submit(std::move(collective));
  Stage(places_.Take(), std::move(collective));
}

void RoutingBackend::Disband(const std::vector<Rank>& members) {
  CollectiveBackend* const made = device();
  if (made != nullptr) made->Disband(members);
}

void RoutingBackend::Abort(Status why) {
  DeviceStaging* staging = nullptr;
  CollectiveBackend* device = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_.ok()) aborted_ = why;
    staging = staging_.get();
    device = device_.get();
  }
  cpu_->Abort(why);
  places_.Open();
  if (staging != nullptr) staging->Abort(why);
  if (device != nullptr) device->Abort(why);
}

void RoutingBackend::FailFromStaging(Status why) {
  std::lock_guard<std::mutex> lock(fail_mutex_);
  if (!closing_) Abort(std::move(why));
}

std::unique_ptr<CpuPlace> RoutingBackend::Reserve() { return std::make_unique<Place>(this); }

void RoutingBackend::Stage(uint64_t place, Collective collective) {
  const Result<DeviceStaging*> staging = Staging();
  if (staging.ok()) return (*staging)->Submit(place, std::move(collective));
  Abort(staging.status());
  places_.GiveUp(place);
  Report(collective.sequence, staging.status());
}

void RoutingBackend::Report(uint64_t sequence, const Status& why) {
  Completion completion;
  completion.sequence = sequence;
  completion.status = why;
  sink_(std::move(completion));
}

Result<DeviceStaging*> RoutingBackend::Staging() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (staging_ != nullptr) return staging_.get();
  DeviceStaging::CpuQueue cpu;
  cpu.run = [this](uint64_t place, Collective collective, CpuPlaces::Ended ended) {
    places_.Run(place, std::move(collective), std::move(ended));
  };
  cpu.give_up = [this](uint64_t place) { places_.GiveUp(place); };
  cpu.fail = [this](Status why) { FailFromStaging(std::move(why)); };
  Result<std::unique_ptr<DeviceStaging>> made = make_staging_(std::move(cpu), sink_);
  if (!made.ok()) return made.status();
  staging_ = std::move(*made);
  if (!aborted_.ok()) staging_->Abort(aborted_);
  return staging_.get();
}

Result<CollectiveBackend*> RoutingBackend::Device() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (device_ != nullptr) return device_.get();
  Result<std::unique_ptr<CollectiveBackend>> made = make_device_(this, sink_);
  if (!made.ok()) return made.status();
  device_ = std::move(*made);
  if (!aborted_.ok()) device_->Abort(aborted_);
  return device_.get();
}

CollectiveBackend* RoutingBackend::device() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return device_.get();
}

int64_t RoutingBackend::bytes_sent() const {
  const CollectiveBackend* const other = device();
  return cpu_->bytes_sent() + (other == nullptr ? 0 : other->bytes_sent());
}

int64_t RoutingBackend::progress() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return cpu_->progress() + (staging_ == nullptr ? 0 : staging_->progress()) +
         (device_ == nullptr ? 0 : device_->progress());
}

int64_t RoutingBackend::wakeups() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return cpu_->wakeups() + (staging_ == nullptr ? 0 : staging_->wakeups()) +
         (device_ == nullptr ? 0 : device_->wakeups());
}

}  // namespace tfring
