#ifndef TFRING_OPS_SIM_RANDOM_CALLS_H_
#define TFRING_OPS_SIM_RANDOM_CALLS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ops/sim/random.h"
#include "ops/sim/workload.h"

namespace tfring::sim {

// A collective, with the properties on which all its members agree.
struct RandomOp {
  Request request;
  std::vector<Rank> set;           // the process set
  std::vector<Rank> participants;  // the set, or the two of a send/recv
  std::vector<int64_t> rows;       // scatter: by member of the set
  bool equal_parts = false;
  std::vector<DataPath> paths;  // by rank
};

// The planted flaw of a call.
enum class Flaw {
  kNone,
  kMismatch,  // one rank asks for something different
  kRefusal,   // the call is invalid on one rank
};

// Makes random collectives of every kind, and each rank's calls. Used by one thread.
class RandomCalls {
 public:
  RandomCalls(int ranks, Random random) : ranks_(ranks), random_(random) {}

  // `number` gives the name; a name may come again with different properties.
  RandomOp Make(ProcessSetId set, const std::vector<Rank>& members, int64_t number);
  // The same each time, as in training.
  const RandomOp& Usual(ProcessSetId set, const std::vector<Rank>& members, int64_t number);

  // Returns the calls of the ranks in `present`; the other participants have joined.
  std::vector<std::pair<Rank, Call>> Calls(const RandomOp& op, const std::vector<Rank>& present,
                                           Flaw flaw);

 private:
  void Fill(RandomOp* op);
  bool FillRows(std::vector<int64_t>* rows);
  Request OnRank(const RandomOp& op, Rank rank);
  void LeaveShapeOpen(Request* request);
  void Disagree(const RandomOp& op, Request* request);
  void MakeInvalid(const RandomOp& op, Rank rank, Request* request);

  const int ranks_;
  Random random_;
  std::map<std::pair<ProcessSetId, int64_t>, RandomOp> usual_;  // by set and number
};

}  // namespace tfring::sim

#endif  // TFRING_OPS_SIM_RANDOM_CALLS_H_
