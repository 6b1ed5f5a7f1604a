// How a simulated process connects to the members of a generation and takes the root's state.

#include <utility>

#include "ops/sim/membership/job.h"
#include "ops/sim/membership/process.h"

namespace tfring::sim {

using membership::Generation;
using membership::WorkerEvents;
using membership::WorkerId;
using membership::WorkerState;

namespace {

// Up to this many members, all members connect to each other. With more, each connects to rank 0
// and to its neighbours in the ring.
constexpr size_t kAllConnected = 8;
constexpr Duration kConnectLimit = 3 * kSecond;

}  // namespace

std::set<WorkerId> Process::Peers(Rank rank) const {
  const auto& members = worker_.record().members;
  const auto size = static_cast<Rank>(members.size());
  std::set<WorkerId> peers;
  for (Rank other = 0; other < size; ++other) {
    const bool near = (rank + 1) % size == other || (other + 1) % size == rank;
    if (other == rank) continue;
    if (members.size() <= kAllConnected || rank == 0 || other == 0 || near) {
      peers.insert(members[other].worker);
    }
  }
  return peers;
}

void Process::Connect() {
  const membership::Record& record = worker_.record();
  job_->checker()->OnConnect(id_, record);
  const Generation generation = record.generation;
  const Rank rank = RankOf(record, id_);
  boundary_ = false;
  // A frame of the last generation may have come after the generation ended.
  asks_.clear();
  parts_.clear();
  unreached_ = Peers(rank);
  for (WorkerId peer : unreached_) {
    if (RankOf(record, peer) > rank) continue;
    const uint64_t nonce = record.nonce;
    Send(peer,
         [from = id_, generation, nonce](Process* to) { to->OnHello(from, generation, nonce); });
    if (job_->IsGone(peer)) {  // the peer refuses the connection
      Later(kMillisecond, [this, generation, peer] { OnPeerGone(generation, peer); });
    }
  }
  const auto early = std::move(backlog_[generation]);
  backlog_.erase(backlog_.begin(), backlog_.upper_bound(generation));
  for (const auto& [from, nonce] : early) OnHello(from, generation, nonce);
  Later(kConnectLimit, [this, generation] {
    if (generation == worker_.generation() && worker_.state() == WorkerState::kJoining &&
        !unreached_.empty()) {
      FailGeneration(*unreached_.begin());
    }
  });
  if (unreached_.empty()) Reached(membership::kNobody);
}

void Process::OnHello(WorkerId from, Generation generation, uint64_t nonce) {
  if (generation > worker_.generation()) {
    backlog_[generation].emplace_back(from, nonce);
    return;
  }
  if (!worker_.Admits(generation, nonce)) {
    Send(from, [generation](Process* to) { to->OnPeerGone(generation, membership::kNobody); });
    return;
  }
  Send(from, [peer = id_, generation](Process* to) { to->OnAccepted(peer, generation); });
  Reached(from);
}

void Process::OnAccepted(WorkerId from, Generation generation) {
  if (generation == worker_.generation() && worker_.state() == WorkerState::kJoining) Reached(from);
}

void Process::Reached(WorkerId peer) {
  unreached_.erase(peer);
  if (!unreached_.empty() || worker_.state() != WorkerState::kJoining) return;
  WorkerEvents events;
  events.connected = worker_.generation();
  StepWorker(std::move(events));
}

// Each member asks the root. The root answers with its state, or with nothing if the member has it.
void Process::Sync() {
  const membership::Record& record = worker_.record();
  const WorkerId root = record.members[record.root].worker;
  if (root == id_) {
    AnswerAsks();
    return;
  }
  Send(root,
       [from = id_, generation = record.generation, position = training_.committed().position](
           Process* to) { to->OnAsk(from, generation, position); });
}

void Process::OnAsk(WorkerId from, Generation generation, membership::Position position) {
  if (generation != worker_.generation()) return;
  asks_[from] = position;
  if (sync_order_) AnswerAsks();
}

void Process::AnswerAsks() {
  const membership::Record& record = worker_.record();
  if (asks_.size() + 1 < record.members.size() || worker_.state() != WorkerState::kSync) return;
  const TrainState& mine = training_.committed();
  const Generation generation = record.generation;
  // As in a real process, the live weights are sent if commits copy none.
  const TrainState& state = training_.live();
  for (const auto& [from, position] : asks_) {
    std::optional<TrainState> sent;
    if (position != mine.position) sent = state;
    Send(from, [generation, sent](Process* to) { to->OnState(generation, sent); });
  }
  asks_.clear();
  Synced();
}

void Process::OnState(Generation generation, const std::optional<TrainState>& state) {
  if (generation != worker_.generation() || worker_.state() != WorkerState::kSync) return;
  const Duration copy = state ? random_.Between(5, 300) * kMillisecond : 0;
  Later(copy, [this, generation, state] {
    if (generation != worker_.generation() || worker_.state() != WorkerState::kSync) return;
    if (state) training_.Adopt(*state);
    Synced();
  });
}

void Process::Synced() {
  runs_ = worker_.generation();
  job_->checker()->OnSynced(id_, worker_.record(), training_.live());
  WorkerEvents events;
  events.synced = WorkerEvents::Synced{runs_, training_.committed().position};
  StepWorker(std::move(events));
  if (alive_ && worker_.state() == WorkerState::kRunning) BeginStep();
}

}  // namespace tfring::sim
