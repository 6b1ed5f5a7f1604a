#ifndef TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_READINESS_H_
#define TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_READINESS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/runtime/base/types.h"
#include "ops/runtime/protocol/message/plan.h"
#include "ops/runtime/protocol/message/request.h"
#include "ops/runtime/protocol/negotiation/name_table.h"
#include "ops/runtime/protocol/negotiation/response_cache.h"
#include "ops/runtime/protocol/negotiation/stall_inspector.h"

namespace tfring {

// The request of one rank for one tensor. It came as a cache id or in full: one of the first two is
// set.
struct RankRequest {
  std::shared_ptr<const Agreement> cached;
  std::shared_ptr<const Request> full;
  uint64_t order = 0;  // ascends over all requests of the generation; 0: none has come

  // What all ranks that sent the same cache id have in common: member 0's request, not always this
  // rank's own (see Agreement::RequestOf).
  const Request& common() const { return cached ? cached->request : *full; }
};

// The requests for one tensor by position in its members. Most tensors that wait long have been
// asked for by a few of many ranks, so memory is taken in blocks, as requests come. Most requests
// in full are equal, and kept once.
class RankRequests {
 public:
  void Resize(size_t size) {
    size_ = size;
    blocks_.resize((size + kBlock - 1) / kBlock);
  }
  size_t size() const { return size_; }
  // One that has not come has order 0.
  const RankRequest& operator[](size_t position) const {
    const auto& block = blocks_[position / kBlock];
    return block == nullptr ? None() : (*block)[position % kBlock];
  }
  const RankRequest& front() const { return (*this)[0]; }
  void Set(size_t position, RankRequest rank_request);
  RankRequest Take(size_t position);

  // What they take, and the requests in full.
  size_t bytes() const { return bytes_ + blocks_.capacity() * sizeof(blocks_[0]); }

 private:
  static constexpr size_t kBlock = 16;
  static const RankRequest& None();

  size_t size_ = 0;
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<std::array<RankRequest, kBlock>>> blocks_;
  std::shared_ptr<const Request> last_full_;
};

// What at least one rank of a process set has asked for under one name and has no plan yet: a
// tensor, a list of them, a barrier or a join.
struct PendingTensor {
  uint64_t handle = 0;
  ProcessSetId process_set = kGlobalProcessSet;
  std::string name;
  std::vector<Rank> members;   // who has to agree: the process set, or the two of a send/recv
  RankRequests rank_requests;  // by position in `members`
  size_t ready = 0;            // how many of them have come
  AskTimes asked;              // when they came
  size_t recorded_bytes = 0;   // what Readiness counts for it
  bool watched = false;
  StallInspector::Token watch;
  // All requests have come and agree. Set from then on:
  bool complete = false;
  std::vector<Rank> absent;                // those that had joined, and sent no request
  DataPath path = DataPath::kCpu;          // of the plan
  std::vector<int64_t> negotiated_values;  // unless there is a CommonAgreement

  size_t bytes() const;  // what it takes, about
  const Request& AnyRequest() const;
  // Of the rank at this position, whose request has come.
  const std::string& CallSiteOf(size_t position) const;
  // By position, or empty if all are equal. Every request has come.
  std::vector<std::string> DifferentCallSites() const;
  DataPath PathOf(size_t position) const;  // the same of the path
  std::vector<DataPath> DifferentPaths() const;
  // kDevice if every member has asked for that, and none is absent.
  DataPath CommonPath() const;
  bool InRun(bool in_run = true) const;  // whether that is so on one of the ranks
  std::vector<Rank> ReadyRanks() const;  // whose requests have come
  Rank LastReady() const;
  // The agreement whose cache id every member sent, or null.
  const Agreement* CommonAgreement() const;
};

// " in process set 1"; nothing for the global one.
std::string SetText(ProcessSetId set);
// "allreduce of tensor 'x' in process set 1".
std::string Describe(const PendingTensor& pending);

// Which ranks are ready for which tensors, in every process set. Part of the Sequencer.
class Readiness {
 public:
  // Records the request of `from` in a process set that has these ranks; null if it has one under
  // this name already. Where ranks disagree on who takes part (one calls send/recv, another
  // allreduce), the union of their members has to be ready, so that all of them get the error.
  PendingTensor* Add(ProcessSetId set, const std::string& name, const std::vector<Rank>& of_set,
                     Rank from, RankRequest rank_request);

  // The tensor that a request of this name belongs to, or null.
  PendingTensor* FindByName(ProcessSetId set, const std::string& name);

  // What all tensors together take, about.
  size_t bytes() const { return bytes_; }

  // From now on a request of this name starts a new PendingTensor, although this one is not erased
  // yet.
  void ReleaseName(const PendingTensor& pending);

  // Null if it has been erased.
  PendingTensor* Find(uint64_t handle);
  void Erase(uint64_t handle);

  // All, the oldest first.
  const std::map<uint64_t, PendingTensor>& all() const { return pending_; }

 private:
  static void Widen(PendingTensor* pending, const std::vector<Rank>& members);

  std::map<uint64_t, PendingTensor> pending_;
  NameTable<PendingTensor*> by_name_;
  size_t bytes_ = 0;
  uint64_t last_handle_ = 0;
  uint64_t last_order_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PROTOCOL_NEGOTIATION_READINESS_H_
