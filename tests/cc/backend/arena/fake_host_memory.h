#ifndef TFRING_TESTS_CC_BACKEND_ARENA_FAKE_HOST_MEMORY_H_
#define TFRING_TESTS_CC_BACKEND_ARENA_FAKE_HOST_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "ops/runtime/interfaces/host_memory.h"

namespace tfring::testing {

// A rank's part of a HostMemory.
class HostPart {
 public:
  HostPart() : memory_(static_cast<char*>(std::aligned_alloc(4096, HostMemory::kPartBytes))) {
    std::fill_n(memory_.get(), HostMemory::kPartBytes, '\0');
  }
  char* memory() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
};

// The memory of the ranks 0 to size - 1 of a host, which are state machines of one thread. Nobody
// really sleeps: a rank says that it does with GoToSleep, and Notify ends that, as in a transport.
class FakeHost {
 public:
  explicit FakeHost(int size) : parts_(size), sleeps_(size), closed_(size, false) {
    ranks_.resize(size);
    std::iota(ranks_.begin(), ranks_.end(), 0);
    for (int rank = 0; rank < size; ++rank) {
      ends_.push_back(std::make_unique<End>(this, rank));
    }
  }

  HostMemory* Of(Rank rank) { return ends_[rank].get(); }
  void GoToSleep(Rank rank, Rank awaited) { sleeps_[rank] = {true, awaited}; }
  bool Sleeps(Rank rank) const { return sleeps_[rank].asleep; }
  void Close(Rank rank) { closed_[rank] = true; }

 private:
  struct Nap {
    bool asleep = false;
    Rank awaited = kNoRank;
  };
  class End final : public HostMemory {
   public:
    End(FakeHost* host, Rank self) : host_(host), self_(self) {}
    const std::vector<Rank>& ranks() const override { return host_->ranks_; }
    char* PartOf(Rank rank) const override { return host_->parts_[rank].memory(); }
    void Notify(Rank rank) override {
      Nap& nap = host_->sleeps_[rank];
      if (nap.awaited == kNoRank || nap.awaited == self_) nap.asleep = false;
    }
    void Sleep(Rank awaited, const std::function<bool()>& ready, TimePoint) override {
      if (!ready()) host_->GoToSleep(self_, awaited);
    }
    bool Closed(Rank rank) const override { return host_->closed_[rank]; }

   private:
    FakeHost* const host_;
    const Rank self_;
  };

  std::vector<Rank> ranks_;
  std::vector<HostPart> parts_;
  std::vector<std::unique_ptr<End>> ends_;
  std::vector<Nap> sleeps_;
  std::vector<bool> closed_;
};

}  // namespace tfring::testing

#endif  // TFRING_TESTS_CC_BACKEND_ARENA_FAKE_HOST_MEMORY_H_
