#include "tests/cc/transport/in_process_data.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tfring {

// All pipes of a job; shared by the endpoints.
struct InProcessDataHub::State {
  struct Pipe {
    std::vector<char> ring;
    size_t begin = 0;
    size_t used = 0;
    bool closed_by_sender = false;
    bool closed_by_receiver = false;
  };

  State(int n, size_t bytes) : size(n), pipes(static_cast<size_t>(n) * n), changed(n) {
    for (Pipe& pipe : pipes) pipe.ring.resize(bytes);
  }

  Pipe& Between(Rank from, Rank to) { return pipes[static_cast<size_t>(from) * size + to]; }

  const int size;
  std::mutex mutex;  // guards pipes
  std::vector<Pipe> pipes;
  std::vector<std::condition_variable> changed;  // by rank
};

// One rank's end. Thread rule and lifetime as DataTransport.
class InProcessDataHub::EndpointImpl final : public DataTransport {
 public:
  EndpointImpl(std::shared_ptr<State> state, Rank rank) : state_(std::move(state)), rank_(rank) {}
  ~EndpointImpl() override { Close(0); }

  bool Connected(Rank peer) const override {
    return peer >= 0 && peer < state_->size && peer != rank_;
  }

  Result<int64_t> TrySend(Rank to, const struct iovec* iov, int count) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    State::Pipe& pipe = state_->Between(rank_, to);
    if (pipe.closed_by_receiver || pipe.closed_by_sender) return Broken("to", to);
    int64_t moved = 0;
    for (int i = 0; i < count; ++i) {
      const char* from = static_cast<const char*>(iov[i].iov_base);
      size_t left = std::min(iov[i].iov_len, pipe.ring.size() - pipe.used);
      while (left > 0) {
        const size_t at = (pipe.begin + pipe.used) % pipe.ring.size();
        const size_t n = std::min(left, pipe.ring.size() - at);
        std::memcpy(pipe.ring.data() + at, from, n);
        pipe.used += n;
        from += n;
        left -= n;
        moved += static_cast<int64_t>(n);
      }
    }
    bytes_sent_ += moved;
    if (moved > 0) state_->changed[static_cast<size_t>(to)].notify_all();
    return moved;
  }

  Result<int64_t> TryRecv(Rank from, const struct iovec* iov, int count) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    State::Pipe& pipe = state_->Between(from, rank_);
    int64_t moved = 0;
    int64_t wanted = 0;
    for (int i = 0; i < count; ++i) {
      wanted += static_cast<int64_t>(iov[i].iov_len);
      char* to = static_cast<char*>(iov[i].iov_base);
      size_t left = std::min(iov[i].iov_len, pipe.used);
      while (left > 0) {
        const size_t n = std::min(left, pipe.ring.size() - pipe.begin);
        std::memcpy(to, pipe.ring.data() + pipe.begin, n);
        pipe.begin = (pipe.begin + n) % pipe.ring.size();
        pipe.used -= n;
        to += n;
        left -= n;
        moved += static_cast<int64_t>(n);
      }
    }
    if (moved == 0 && wanted > 0 && pipe.closed_by_sender) return Broken("from", from);
    if (moved > 0) state_->changed[static_cast<size_t>(from)].notify_all();
    return moved;
  }

  void Wait(const std::vector<Rank>& readable, const std::vector<Rank>& writable) override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed[static_cast<size_t>(rank_)].wait(lock, [&] {
      const auto can_read = [this](Rank peer) {
        const State::Pipe& pipe = state_->Between(peer, rank_);
        return pipe.used > 0 || pipe.closed_by_sender;
      };
      const auto can_write = [this](Rank peer) {
        const State::Pipe& pipe = state_->Between(rank_, peer);
        return pipe.used < pipe.ring.size() || pipe.closed_by_receiver;
      };
      return interrupted_ || std::any_of(readable.begin(), readable.end(), can_read) ||
             std::any_of(writable.begin(), writable.end(), can_write);
    });
  }

  void Interrupt() override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    interrupted_ = true;
    state_->changed[static_cast<size_t>(rank_)].notify_all();
  }

  int64_t bytes_sent() const override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return bytes_sent_;
  }

  // What was sent stays in the pipes, which outlive this end: there is nothing to drain.
  void Close(TimePoint) override {
    std::lock_guard<std::mutex> lock(state_->mutex);
    for (Rank peer = 0; peer < state_->size; ++peer) {
      state_->Between(rank_, peer).closed_by_sender = true;
      state_->Between(peer, rank_).closed_by_receiver = true;
      state_->changed[static_cast<size_t>(peer)].notify_all();
    }
  }

 private:
  static Status Broken(const char* verb, Rank peer) {
    return Unavailable(std::string("the data connection ") + verb + " rank " +
                       std::to_string(peer) + " broke: the peer closed it");
  }

  const std::shared_ptr<State> state_;
  const Rank rank_;
  bool interrupted_ = false;  // guarded by state_->mutex
  int64_t bytes_sent_ = 0;    // guarded by state_->mutex
};

InProcessDataHub::InProcessDataHub(int size, size_t pipe_bytes)
    : state_(std::make_shared<State>(size, pipe_bytes)) {}

InProcessDataHub::~InProcessDataHub() = default;

std::unique_ptr<DataTransport> InProcessDataHub::Endpoint(Rank rank) {
  return std::make_unique<EndpointImpl>(state_, rank);
}

}  // namespace tfring
