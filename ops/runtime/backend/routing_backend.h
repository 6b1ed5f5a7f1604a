#ifndef TFRING_OPS_RUNTIME_BACKEND_ROUTING_BACKEND_H_
#define TFRING_OPS_RUNTIME_BACKEND_ROUTING_BACKEND_H_

#include <functional>
#include <memory>
#include <mutex>

#include "ops/runtime/backend/host_places.h"
#include "ops/runtime/backend/staging/staging.h"
#include "ops/runtime/interfaces/collective_backend.h"
#include "ops/runtime/interfaces/host_order.h"

namespace tfring {

// Sends each collective where its tensors are: those in host memory to the host backend, those with
// tensors in device memory to the device backend if their path is kDevice, else through Staging to
// the host backend. Without a device backend all are staged. Staging and the device backend are
// made with the first collective that needs them, so a process without a GPU has neither, nor their
// threads. Threads and lifetime as CollectiveBackend says; Submit is for one thread.
class RoutingBackend final : public CollectiveBackend, private HostOrder {
 public:
  using MakeHost = std::function<std::unique_ptr<CollectiveBackend>(CompletionSink)>;
  // May be empty. Called on the thread of Submit; must not block.
  using MakeDevice = std::function<std::unique_ptr<CollectiveBackend>(HostOrder*, CompletionSink)>;

  // Throws what `make_host` throws.
  RoutingBackend(const MakeHost& make_host, MakeDevice make_device, CompletionSink sink,
                 const StagingOptions& staging = {});
  ~RoutingBackend() override;

  const char* name() const override { return host_->name(); }
  void Submit(Collective collective) override;
  void Abort(Status why) override;
  int64_t bytes_sent() const override;
  int64_t progress() const override;
  int64_t wakeups() const override;

 private:
  class Place;
  struct Link;

  std::unique_ptr<HostPlace> Reserve() override;
  void Stage(uint64_t place, Collective collective);
  Status MakeStaging();
  CollectiveBackend* Device();
  CollectiveBackend* device() const;

  void FailFromStaging(Status why);

  const MakeDevice make_device_;
  const CompletionSink sink_;
  const StagingOptions staging_options_;
  const std::shared_ptr<Link> link_;
  HostPlaces places_;
  std::unique_ptr<CollectiveBackend> host_;

  std::mutex fail_mutex_;  // held by FailFromStaging; guards closing_
  bool closing_ = false;
  mutable std::mutex mutex_;  // guards the making of the two, and aborted_
  Status aborted_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<CollectiveBackend> device_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BACKEND_ROUTING_BACKEND_H_
