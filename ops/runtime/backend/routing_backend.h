#ifndef TFRING_OPS_RUNTIME_BACKEND_ROUTING_BACKEND_H_
#define TFRING_OPS_RUNTIME_BACKEND_ROUTING_BACKEND_H_

#include <functional>
#include <memory>
#include <mutex>

#include "ops/runtime/backend/cpu_places.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/cpu_order.h"
#include "ops/runtime/interfaces/devices.h"

namespace tfring {

// Sends each collective to the backend of its tensors. Tensors in CPU memory go to the CPU backend.
// Tensors in device memory go to the device backend if the path is kDevice, otherwise (or without a
// device backend) through DeviceStaging to the CPU backend. The first collective that needs the
// device backend or the staging makes it, so a process without a GPU has neither, nor their
// threads. Threads and lifetime as in CollectiveBackend; only one thread calls Submit.
class RoutingBackend final : public CollectiveBackend, private CpuOrder {
 public:
  using MakeCpu = std::function<std::unique_ptr<CollectiveBackend>(CompletionSink)>;
  // These two are called on the thread of Submit, or on one that a place was given to; must not
  // block. MakeDevice may be empty.
  using MakeStaging = std::function<Result<std::unique_ptr<DeviceStaging>>(DeviceStaging::CpuQueue,
                                                                           CompletionSink)>;
  using MakeDevice =
      std::function<Result<std::unique_ptr<CollectiveBackend>>(CpuOrder*, CompletionSink)>;

  // Throws what `make_cpu` throws.
  RoutingBackend(const MakeCpu& make_cpu, MakeStaging make_staging, MakeDevice make_device,
                 CompletionSink sink);
  ~RoutingBackend() override;

  const char* name() const override { return cpu_->name(); }
  void Submit(Collective collective) override;
  void Disband(const std::vector<Rank>& members) override;
  void Abort(Status why) override;
  int64_t bytes_sent() const override;
  int64_t progress() const override;
  int64_t memory() const override { return cpu_->memory(); }
  int64_t wakeups() const override;

 private:
  class Place;
  struct Link;

  std::unique_ptr<CpuPlace> Reserve() override;
  void Stage(uint64_t place, Collective collective);
  Result<DeviceStaging*> Staging();
  Result<CollectiveBackend*> Device();
  void Report(uint64_t sequence, const Status& why);
  CollectiveBackend* device() const;  // null: not made
  void FailFromStaging(Status why);

  const MakeStaging make_staging_;
  const MakeDevice make_device_;
  const CompletionSink sink_;
  const std::shared_ptr<Link> link_;
  CpuPlaces places_;
  std::unique_ptr<CollectiveBackend> cpu_;

  std::mutex fail_mutex_;  // held by FailFromStaging; guards closing_
  bool closing_ = false;
  mutable std::mutex mutex_;  // guards the making of the two, and aborted_
  Status aborted_;
  std::unique_ptr<DeviceStaging> staging_;
  std::unique_ptr<CollectiveBackend> device_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ROUTING_BACKEND_H_
