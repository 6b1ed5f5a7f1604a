#include <utility>

#include "ops/runtime/protocol/engine/engine_impl.h"
#include "ops/runtime/protocol/message/nonce.h"
#include "ops/runtime/protocol/message/text.h"

// How a generation ends: what goodbyes, lost connections and fault reports mean, and who has to be
// told. A lost rank shows in several ways (its control connection ends, data connections break, its
// process ends, heartbeats stop), often first on a rank that cannot tell which of its peers is to
// blame. So a rank that sees a data connection break only suspects the peer, reports that to rank 0
// and waits a moment; rank 0, to which every rank is connected, decides and tells all others, so
// that they name the same rank. When the time is over without a decision, the suspicion holds.
namespace tfring {

namespace {

FrameType PeekType(std::string_view bytes) {
  return bytes.empty() ? FrameType{0} : static_cast<FrameType>(static_cast<uint8_t>(bytes[0]));
}

constexpr char kEnded[] = " ended with an exception: ";

bool IsNegotiation(FrameType type) {
  return type == FrameType::kRequests || type == FrameType::kPlans || type == FrameType::kResend ||
         type == FrameType::kWithdraw || (type >= FrameType::kLock && type <= FrameType::kUnlock);
}

}  // namespace

void Engine::Impl::OnControl(const ControlEvent& event) {
  if (!peers_.InRange(event.peer) || event.peer == rank_) return;
  if (event.kind == ControlEvent::Kind::kPeerLost) {
    if (HasKeptGoodbye(event.peer)) return kept_.push_back({event, false});
    return OnPeerLost(event.peer, event.reason);
  }
  if (!peers_.IsControlPeer(event.peer)) return;
  peers_.Received(event.peer, now_);
  if (event.kind == ControlEvent::Kind::kAlive) return;
  std::string_view frame = event.frame;
  const Status ours = TakeNonce(nonce_, &frame);
  if (!ours.ok()) return EndOnPeerLoss(event.peer, ours.message());
  if (Keep(event, PeekType(frame))) return;
  if (!IsNegotiation(PeekType(frame))) return OnControlFrame(event.peer, frame);
  // Requests of a rank that has left are of no use: it cancels those calls itself. Rank 0 plans on.
  if (negotiator_ == nullptr || (rank_ == 0 && peers_.departed(event.peer))) return;
  negotiator_->OnFrame(event.peer, frame, now_);
  ReadKept();
}

void Engine::Impl::OnControlFrame(Rank from, std::string_view bytes) {
  Result<Frame> frame = DecodeFrame(bytes);
  if (!frame.ok()) {
    return EndOnPeerLoss(from, "it sent a frame that cannot be read: " + frame.status().message());
  }
  switch (frame->type) {
    case FrameType::kHeartbeat:
      return;
    case FrameType::kGoodbye:
      return OnGoodbye(from, *frame);
    case FrameType::kAbort:
      return OnAbort(from, *frame);
    case FrameType::kFault:
      return OnFault(from, *frame);
    default:
      return EndOnPeerLoss(from, "it sent a frame of the wrong type");
  }
}

void Engine::Impl::OnGoodbye(Rank from, const Frame& frame) {
  if (rank_ == 0 && frame.departures.size() != 1) {
    return EndOnPeerLoss(from, "it sent goodbyes of others");
  }
  for (const Departure& departure : frame.departures) OnDeparture(from, departure);
}

void Engine::Impl::OnDeparture(Rank from, const Departure& departure) {
  const Rank who = departure.rank;
  const bool answer = who == rank_ && leaving_ && rank_ != 0;
  if (!peers_.InRange(who) || (who == rank_ && !answer) || (rank_ == 0 && who != from)) {
    return EndOnPeerLoss(from, "it sent a goodbye for rank " + std::to_string(who));
  }
  DrainNegotiator();  // plans that came, or were made, before the goodbye still count
  if (answer) return Close(LeftStatus(rank_, ""));
  if (peers_.departed(who)) return;
  peers_.MarkDeparted(who, departure.error);
  departed_.insert(who);
  health_changed_ = true;
  if (rank_ == 0) {
    SendGoodbye(who, {{who, ""}});  // the answer: no plan for that rank follows
    goodbyes_.push_back(departure);
  }
  std::optional<Peers::Suspicion> suspicion = peers_.TakeSuspicion(who);
  if (suspicion && suspicion->hard) return EndOnLeave(who, "");
  if (rank_ == 0 && negotiator_ != nullptr) negotiator_->OnDeparted(who, ErrorText(who), now_);
  // Rank 0 still answers requests, until its connection ends (OnPeerLost).
}

void Engine::Impl::OnAbort(Rank from, const Frame& frame) {
  if (rank_ == 0) return EndOnPeerLoss(from, "it sent a frame of the wrong type");
  EndGeneration(
      frame.status.ok() ? Internal(Name(0) + " ended the job without a reason") : frame.status,
      frame.rank);
}

void Engine::Impl::OnFault(Rank from, const Frame& frame) {
  const Rank suspect = frame.rank;
  if (rank_ != 0 || !peers_.InRange(suspect) || frame.status.ok()) {
    return EndOnPeerLoss(from, "it sent a fault report that makes no sense");
  }
  if (!ended_.ok()) return;
  if (suspect == from) {  // its own fault: it is not lost, but it may be leaving
    const bool leaves = frame.status.code() == StatusCode::kCancelled;
    return EndGeneration(frame.status, leaves ? from : kNoRank);
  }
  if (frame.status.code() == StatusCode::kDeadlineExceeded) {  // its goodbye is overdue there
    if (peers_.departed(suspect) || suspect == rank_) return;
    return peers_.Suspect(suspect, {frame.status.message(), now_ + kSequencerGrace, false});
  }
  if (peers_.departed(suspect) || HasKeptGoodbye(suspect) || (suspect == rank_ && leaving_)) {
    return EndGeneration(LeftStatus(suspect, ""), suspect);
  }
  peers_.Suspect(
      suspect, {Name(from) + " reports: " + frame.status.message(), now_ + kSequencerGrace, true});
}

void Engine::Impl::OnPeerLost(Rank peer, const std::string& reason) {
  if (peers_.gone(peer)) return;
  if (peers_.IsControlPeer(peer)) {
    // All frames of this connection came before this event: a goodbye would have been among them.
    peers_.MarkGone(peer);
    if (!peers_.departed(peer)) return EndOnPeerLoss(peer, reason);
    if (peer != 0) return;
    // Without rank 0 there are no more plans. Those that run need no sequencer, but nobody could
    // tell this rank if one broke elsewhere: hence the drain limit in Close.
    DrainNegotiator();
    Close(LeftStatus(leaving_ ? rank_ : 0, ""));
  } else if (!peers_.departed(peer) && closed_.ok()) {
    peers_.Suspect(peer, {reason, now_ + kGoodbyeGrace, false});
  }
}

// The time for an explanation is over.
void Engine::Impl::OnSuspicion(Rank suspect, const Peers::Suspicion& suspicion) {
  if (suspect == kNoRank) {
    if (peers_.first_departed() != kNoRank) return EndOnLeave(peers_.first_departed(), "");
    EndOnError(Unavailable(suspicion.reason + ". A rank of this collective may be gone, but in " +
                           std::to_string(kUnknownGrace / kSecond) +
                           " s no rank was found to be. See the logs of all ranks; " + kWhatToDo));
  } else if (!suspicion.hard) {
    // Nothing is broken here: rank 0, which may know of a goodbye, decides.
    if (!closed_.ok()) return;
    if (rank_ == 0) return EndOnPeerLoss(suspect, suspicion.reason);
    ReportFault(suspect, DeadlineExceeded(suspicion.reason));
  } else if (peers_.departed(0)) {
    EndOnLeave(suspect, "");  // after rank 0's goodbye the others are leaving too
  } else {
    EndOnPeerLoss(suspect, suspicion.reason);
  }
}

void Engine::Impl::OnShutdown(const std::string& error) {
  if (leaving_) return;
  leaving_ = true;
  if (negotiator_ != nullptr) negotiator_->StopLock({UnlockCause::kShutdown, ""}, now_);
  DrainNegotiator();
  const Departure own{rank_, Shortened(error, kMaxDepartureError)};
  const Rank first = peers_.first_departed();  // which others may have to name: see LeftStatus
  for (Rank peer : peers_.control_peers()) {
    std::vector<Departure> departures;
    if (rank_ == 0 && first != kNoRank && !peers_.departed(peer)) {
      departures.push_back({first, peers_.departure_error(first)});
    }
    departures.push_back(own);
    SendGoodbye(peer, std::move(departures));
  }
  if (negotiator_ == nullptr) return;
  leave_deadline_ = now_ + (rank_ == 0 ? kSequencerStays : kDrainLimit);
  if (size_ == 1) return Close(LeftStatus(rank_, ""));
  if (rank_ != 0) return;  // until rank 0 answers
  Refuse(LeftStatus(rank_, ""));
  AddResults(negotiator_->Leave(own.error.empty() ? "" : Name(rank_) + kEnded + own.error, now_),
             closed_);
}

void Engine::Impl::OnBrokenConnection(const Completion& completion, const std::string& what) {
  const Rank suspect = completion.suspect;
  // Once rank 0 has left, every rank leaves, and nobody can forward the goodbye of the suspect.
  if (peers_.departed(suspect) || peers_.gone(0)) return EndOnLeave(suspect, what);
  const Status evidence =
      Unavailable("the data stream of " + what + " broke: " + completion.status.message());
  peers_.Suspect(suspect,
                 {evidence.message(), now_ + (rank_ == 0 ? kSequencerGrace : kFaultGrace), true});
  ReportFault(suspect, evidence);
  // Bytes of this plan may be left in the connections: the plans behind it must not run.
  effects_.abort = LostStatus(suspect, evidence.message());
  aborted_ = true;
}

// Not a fault of this rank: a peer that dies in the middle of a collective between devices breaks
// it on all members, often before its connections close. Whoever notices that ends the generation.
void Engine::Impl::OnBrokenGroup(const Status& failure, const std::string& what) {
  if (peers_.gone(0)) return EndOnLeave(0, what);  // nobody can say who is gone
  const std::string text = Name(rank_) + " could not run " + what + ": " + failure.message();
  peers_.Suspect(kNoRank, {text, now_ + kUnknownGrace, true});
  // The plans behind it on the device must not run.
  effects_.abort = Unavailable(text);
  aborted_ = true;
}

void Engine::Impl::EndOnPeerLoss(Rank peer, const std::string& reason) {
  if (!ended_.ok()) return;
  const Status why = LostStatus(peer, reason);
  ReportFault(peer, why);
  EndGeneration(why, peer);
}

void Engine::Impl::EndOnLeave(Rank peer, const std::string& what) {
  if (!ended_.ok()) return;
  const Status why = LeftStatus(peer, what);
  ReportFault(peer, why);
  EndGeneration(why, peer);
}

void Engine::Impl::EndOnError(const Status& status) {
  if (!ended_.ok()) return;
  ReportFault(rank_, status);
  EndGeneration(status, kNoRank);
}

void Engine::Impl::ReportFault(Rank rank, const Status& status) {
  if (rank_ == 0) return;  // rank 0 tells everybody when the generation ends
  Frame fault;
  fault.type = FrameType::kFault;
  fault.rank = rank;
  fault.status = status;
  SendFrame(0, fault);
}

void Engine::Impl::EndGeneration(const Status& why, Rank lost) {
  if (!ended_.ok()) return;
  ended_ = why;
  health_changed_ = true;
  if (peers_.InRange(lost) && lost != rank_) {
    (why.code() == StatusCode::kCancelled ? departed_ : lost_).insert(lost);
  }
  if (rank_ == 0) {
    Frame abort;
    abort.type = FrameType::kAbort;
    abort.rank = lost;
    abort.status = why;
    Broadcast(abort);
  }
  if (!aborted_) effects_.abort = why;
  aborted_ = true;
  AddResults(std::exchange(held_, {}), why);
  Close(why);
}

void Engine::Impl::UpdateHealth() {
  if (!std::exchange(health_changed_, false)) return;
  auto health = std::make_shared<GenerationHealth>();
  health->lost.assign(lost_.begin(), lost_.end());
  health->departed.assign(departed_.begin(), departed_.end());
  if (!ended_.ok()) {
    health->error = ended_;
  } else if (!closed_.ok() && !leaving_) {
    health->error = closed_;
  } else if (!departed_.empty()) {
    health->error = LeftStatus(peers_.first_departed(), "");
  }
  effects_.health = std::move(health);
}

void Engine::Impl::Refuse(const Status& why) {
  if (!closed_.ok()) return;
  closed_ = why;
  health_changed_ = true;
  drain_deadline_ = now_ + kDrainLimit;
  drain_progress_ = progress_;
}

void Engine::Impl::Close(const Status& why) {
  Refuse(why);
  if (negotiator_ == nullptr) return;
  TakeRecalled();
  EndParked(why);
  AddResults(negotiator_->TakeCalls(), why);
  negotiator_.reset();
}

void Engine::Impl::SendGoodbye(Rank to, std::vector<Departure> departures) {
  Frame goodbye;
  goodbye.type = FrameType::kGoodbye;
  goodbye.departures = std::move(departures);
  SendFrame(to, goodbye);
}

// tfring/observe/explain/ends.py reads who is to blame out of this text and the next.
Status Engine::Impl::LostStatus(Rank peer, const std::string& reason) const {
  return Unavailable(Name(peer) + " was lost: " + reason + ". See the log of that rank; " +
                     kWhatToDo);
}

Status Engine::Impl::LeftStatus(Rank peer, const std::string& what) const {
  std::string text = Name(peer) + " has shut down";
  std::string error = peer == rank_ ? "" : ErrorText(peer);
  // Rank 0 often leaves because another rank did: name that one.
  const Rank first = peers_.first_departed();
  if (peer == 0 && rank_ != 0 && first != kNoRank && first != 0) {
    error = ErrorText(first);
    text += ", after " + (error.empty() ? Name(first) + " had" : error);
  } else if (!error.empty()) {
    text = error;
  }
  if (!what.empty()) text += (error.empty() ? " while " : ", while ") + what + " was running";
  return Cancelled(text + (error.empty() ? ": no" : ". No") +
                   " collective with it is possible any more");
}

std::string Engine::Impl::ErrorText(Rank peer) const {
  const std::string& error = peers_.departure_error(peer);
  return error.empty() ? "" : Name(peer) + kEnded + error;
}

}  // namespace tfring
