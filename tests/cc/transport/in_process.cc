#include "tests/cc/transport/in_process.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/clock.h"

namespace tfring {

// The mailboxes of all ranks, shared by the endpoints.
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

class InProcessControlHub::End final : public ControlTransport {
 public:
  End(std::shared_ptr<State> state, Rank rank)
      : state_(std::move(state)),
        rank_(rank),
        self_(state_->mailboxes[static_cast<size_t>(rank)]) {}
  ~End() override { Close(0); }

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

  // What was sent lies in the peers' mailboxes already: there is nothing to wait for.
  void Close(TimePoint) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!self_.open) return;
    for (size_t i = 0; i < state_->mailboxes.size(); ++i) {
      const auto peer = static_cast<Rank>(i);
      if (!state_->Linked(rank_, peer)) continue;
      Deliver(peer, {ControlEvent::Kind::kPeerLost, rank_, "", "connection closed"});
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

std::unique_ptr<ControlTransport> InProcessControlHub::Endpoint(Rank rank) {
  return std::make_unique<End>(state_, rank);
}

// The streams of all ranks, shared by the endpoints.
struct InProcessDataHub::State {
  struct Stream {
    std::string bytes;
    size_t begin = 0;

    int64_t size() const { return static_cast<int64_t>(bytes.size() - begin); }
    void Drop(int64_t count) {
      begin += static_cast<size_t>(count);
      if (begin < bytes.size()) return;
      bytes.clear();
      begin = 0;
    }
  };

  State(int n, Options given)
      : size(n), options(std::move(given)), random(options.seed), closed(size), broken(size) {}

  Stream& Between(Rank from, Rank to) { return streams[{from, to}]; }
  // What a rank sent before it closed can still be received.
  bool SendFails(Rank from, Rank to) const {
    return broken[from] || broken[to] || closed[from] || closed[to];
  }
  bool RecvFails(Rank from, Rank to) {
    return broken[from] || broken[to] || (closed[from] && Between(from, to).size() == 0);
  }

  // How many of `most` bytes a call moves: none, all and something between, each often.
  int64_t Part(int64_t most) {
    const uint32_t choice = options.seed == 0 ? 1 : random() % 4;
    if (choice == 0) return 0;
    if (choice == 1 || most <= 0) return most;
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most)) + 1;
  }

  const int size;
  const Options options;
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::mt19937 random;
  std::map<std::pair<Rank, Rank>, Stream> streams;
  std::vector<bool> closed;  // by rank
  std::vector<bool> broken;  // by rank
  std::set<std::pair<Rank, Rank>> cut;
  int64_t sent = 0;
};

class InProcessDataHub::End final : public DataTransport {
 public:
  End(std::shared_ptr<State> state, Rank rank) : state_(std::move(state)), rank_(rank) {}
  ~End() override { Close(0); }

  bool Connected(Rank peer) const override {
    return peer >= 0 && peer < state_->size && peer != rank_ &&
           state_->options.connected(rank_, peer);
  }

  Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->SendFails(rank_, to)) return Lost(to);
    State::Stream& stream = state_->Between(rank_, to);
    const bool lost = state_->cut.count({rank_, to}) > 0;
    int64_t moved = 0;
    int64_t left = state_->Part(state_->options.capacity - stream.size());
    for (int i = 0; i < count && left > 0; ++i) {
      const int64_t part = std::min(left, static_cast<int64_t>(iov[i].iov_len));
      if (!lost) {
        stream.bytes.append(static_cast<const char*>(iov[i].iov_base), static_cast<size_t>(part));
      }
      moved += part;
      left -= part;
    }
    bytes_sent_ += moved;
    state_->sent += moved;
    state_->changed.notify_all();
    return moved;
  }

  Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->RecvFails(from, rank_)) return Lost(from);
    State::Stream& stream = state_->Between(from, rank_);
    int64_t moved = 0;
    int64_t left = state_->Part(stream.size());
    for (int i = 0; i < count && left > 0; ++i) {
      const int64_t part = std::min(left, static_cast<int64_t>(iov[i].iov_len));
      std::memcpy(iov[i].iov_base, stream.bytes.data() + stream.begin, static_cast<size_t>(part));
      stream.Drop(part);
      moved += part;
      left -= part;
    }
    state_->changed.notify_all();
    return moved;
  }

  bool CanPeek(Rank) const override { return state_->options.peek; }

  Result<struct iovec> Peek(Rank from) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->RecvFails(from, rank_)) return Lost(from);
    const State::Stream& stream = state_->Between(from, rank_);
    view_ = stream.bytes.substr(stream.begin, static_cast<size_t>(state_->Part(stream.size())));
    return iovec{view_.data(), view_.size()};
  }

  void Consume(Rank from, int64_t bytes) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->Between(from, rank_).Drop(bytes);
    state_->changed.notify_all();
  }

  std::optional<BrokenStream> Wait(const WaitSet& what) override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    const auto broken = [&] {
      return std::find_if(what.watched.begin(), what.watched.end(),
                          [&](Rank peer) { return state_->broken[peer]; });
    };
    const auto ready = [&] {
      return interrupted_ || broken() != what.watched.end() ||
             std::any_of(what.readable.begin(), what.readable.end(),
                         [&](Rank peer) {
                           return state_->RecvFails(peer, rank_) ||
                                  state_->Between(peer, rank_).size() > 0;
                         }) ||
             std::any_of(what.writable.begin(), what.writable.end(), [&](Rank peer) {
               return state_->SendFails(rank_, peer) ||
                      state_->Between(rank_, peer).size() < state_->options.capacity;
             });
    };
    if (what.deadline == kNever) {
      state_->changed.wait(lock, ready);
    } else {
      state_->changed.wait_until(
          lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(what.deadline)),
          ready);
    }
    if (broken() == what.watched.end()) return std::nullopt;
    return BrokenStream{*broken(), Lost(*broken())};
  }

  std::string PathTrouble(Rank peer) const override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    const bool cut = state_->cut.count({rank_, peer}) + state_->cut.count({peer, rank_}) > 0;
    return cut ? "it was cut" : "";
  }

  void Interrupt() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    interrupted_ = true;
    state_->changed.notify_all();
  }

  int64_t bytes_sent() const override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return bytes_sent_;
  }

  // What was sent stays in the streams, which outlive this end: there is nothing to wait for.
  void Close(TimePoint) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed[rank_] = true;
    state_->changed.notify_all();
  }

 private:
  static Status Lost(Rank peer) {
    return Unavailable("rank " + std::to_string(peer) + ": connection closed");
  }

  const std::shared_ptr<State> state_;
  const Rank rank_;
  bool interrupted_ = false;  // guarded by state_->mutex, as are the next two
  int64_t bytes_sent_ = 0;
  std::string view_;
};

InProcessDataHub::InProcessDataHub(int size, Options options)
    : state_(std::make_shared<State>(size, std::move(options))) {}

std::unique_ptr<DataTransport> InProcessDataHub::Endpoint(Rank rank) {
  return std::make_unique<End>(state_, rank);
}

void InProcessDataHub::Break(Rank rank) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->broken[rank] = true;
  state_->changed.notify_all();
}

void InProcessDataHub::Cut(Rank from, Rank to) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->cut.insert({from, to});
  state_->Between(from, to).Drop(state_->Between(from, to).size());
}

void InProcessDataHub::WaitForBytes(int64_t bytes) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->sent >= bytes; });
}

}  // namespace tfring
