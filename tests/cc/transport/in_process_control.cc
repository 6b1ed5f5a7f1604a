#include "tests/cc/transport/in_process_control.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/transport/socket_util.h"

namespace tfring {

// All mailboxes of a job; shared by the endpoints.
struct InProcessControlHub::State {
  struct Mailbox {
    std::vector<ControlEvent> events;
    std::condition_variable changed;
    bool woken = false;
    bool open = true;
    int64_t wakeups = 0;
  };

  explicit State(int size) : mailboxes(static_cast<size_t>(size)) {}

  bool Linked(Rank a, Rank b) const {
    return a != b && (a == 0 || b == 0) && b >= 0 && static_cast<size_t>(b) < mailboxes.size();
  }

  std::mutex mutex;  // guards the mailboxes
  std::vector<Mailbox> mailboxes;
};

// One rank's end. Thread rule and lifetime as ControlTransport.
class InProcessControlHub::EndpointImpl final : public ControlTransport {
 public:
  EndpointImpl(std::shared_ptr<State> state, Rank rank)
      : state_(std::move(state)),
        rank_(rank),
        self_(state_->mailboxes[static_cast<size_t>(rank)]) {}
  ~EndpointImpl() override { Close(0); }

  void Send(Rank to, std::string frame) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!self_.open || !state_->Linked(rank_, to)) return;
    Deliver(to, {ControlEvent::Kind::kFrame, rank_, std::move(frame), ""});
  }

  void Wait(TimePoint deadline, std::vector<ControlEvent>* events) override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    const auto ready = [this] { return self_.woken || !self_.events.empty(); };
    if (!ready() && deadline > MonotonicNow()) {
      if (deadline == kNever) {
        self_.changed.wait(lock, ready);
      } else {
        const auto until =
            std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
        self_.changed.wait_until(lock, until, ready);
      }
      ++self_.wakeups;
    }
    self_.woken = false;
    for (ControlEvent& event : self_.events) events->push_back(std::move(event));
    self_.events.clear();
  }

  void Wake() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    self_.woken = true;
    self_.changed.notify_one();
  }

  // What was sent lies in the peers' mailboxes already: there is nothing to drain.
  void Close(TimePoint) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!self_.open) return;
    for (size_t peer = 0; peer < state_->mailboxes.size(); ++peer) {
      if (!state_->Linked(rank_, static_cast<Rank>(peer))) continue;
      Deliver(static_cast<Rank>(peer),
              {ControlEvent::Kind::kPeerLost, rank_, "", "connection closed"});
    }
    self_.open = false;
    self_.events.clear();
  }

  int64_t wakeups() const override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return self_.wakeups;
  }

 private:
  void Deliver(Rank to, ControlEvent event) {
    State::Mailbox& box = state_->mailboxes[static_cast<size_t>(to)];
    if (!box.open) return;
    box.events.push_back(std::move(event));
    box.changed.notify_one();
  }

  const std::shared_ptr<State> state_;
  const Rank rank_;
  State::Mailbox& self_;
};

InProcessControlHub::InProcessControlHub(int size) : state_(std::make_shared<State>(size)) {}

InProcessControlHub::~InProcessControlHub() = default;

std::unique_ptr<ControlTransport> InProcessControlHub::Endpoint(Rank rank) {
  return std::make_unique<EndpointImpl>(state_, rank);
}

}  // namespace tfring
