#include <utility>

#include "ops/runtime/protocol/engine/engine.h"
#include "ops/runtime/protocol/engine/limits.h"
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

bool IsNegotiation(FrameType type) {
  return type == FrameType::kRequests || type == FrameType::kPlans ||
         type == FrameType::kWithdraw || (type >= FrameType::kLock && type <= FrameType::kUnlock);
}

}  // namespace

void Engine::OnControl(const ControlEvent& event) {
  if (!peers_.InRange(event.peer) || event.peer == rank_) return;
  if (event.kind == ControlEvent::Kind::kPeerLost) {
    if (kept_.HasGoodbye(event.peer)) return kept_.AddEnd(event);
    return OnPeerLost(event.peer, event.reason);
  }
  if (!peers_.IsControlPeer(event.peer)) return;
  peers_.Received(event.peer, time_.now);
  if (event.kind == ControlEvent::Kind::kAlive) return;
  std::string_view frame = event.frame;
  const Status ours = frames_.Open(&frame);
  if (!ours.ok()) return EndOnPeerLoss(event.peer, ours.message());
  if (Keep(event, PeekType(frame))) return;
  if (!IsNegotiation(PeekType(frame))) return OnControlFrame(event.peer, frame);
  // Requests of a rank that has left are of no use: it cancels those calls itself. Rank 0 plans on.
  if (negotiator_ == nullptr || (rank_ == 0 && peers_.departed(event.peer))) return;
  negotiator_->OnFrame(event.peer, frame, time_.now);
  ReadKept();
}

void Engine::OnControlFrame(Rank from, std::string_view bytes) {
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

void Engine::OnGoodbye(Rank from, const Frame& frame) {
  if (rank_ == 0 && frame.departures.size() != 1) {
    return EndOnPeerLoss(from, "it sent goodbyes of others");
  }
  for (const Departure& departure : frame.departures) OnDeparture(from, departure);
}

void Engine::OnDeparture(Rank from, const Departure& departure) {
  const Rank who = departure.rank;
  const bool answer = who == rank_ && ending_.leaving() && rank_ != 0;
  if (!peers_.InRange(who) || (who == rank_ && !answer) || (rank_ == 0 && who != from)) {
    return EndOnPeerLoss(from, "it sent a goodbye for rank " + std::to_string(who));
  }
  DrainNegotiator();  // plans that came, or were made, before the goodbye still count
  if (answer) return Close(texts_.Left(rank_));
  if (peers_.departed(who)) return;
  peers_.MarkDeparted(who, departure.error);
  ending_.AddDeparted(who);
  if (rank_ == 0) {
    SendGoodbye(who, {{who, ""}});  // the answer: no plan for that rank follows
    goodbyes_.Add(departure);
  }
  std::optional<Peers::Suspicion> suspicion = peers_.TakeSuspicion(who);
  if (suspicion && suspicion->hard) return EndOnLeave(who, "");
  if (rank_ == 0 && negotiator_ != nullptr) {
    negotiator_->OnDeparted(who, texts_.Ended(who), time_.now);
  }
  // Rank 0 still answers requests, until its connection ends (OnPeerLost).
}

void Engine::OnAbort(Rank from, const Frame& frame) {
  if (rank_ == 0) return EndOnPeerLoss(from, "it sent a frame of the wrong type");
  EndGeneration(frame.status.ok() ? Internal(texts_.Name(0) + " ended the job without a reason")
                                  : frame.status,
                frame.rank);
}

void Engine::OnFault(Rank from, const Frame& frame) {
  const Rank suspect = frame.rank;
  if (rank_ != 0 || !peers_.InRange(suspect) || frame.status.ok()) {
    return EndOnPeerLoss(from, "it sent a fault report that makes no sense");
  }
  if (!ending_.ended().ok()) return;
  if (suspect == from) {  // its own fault: it is not lost, but it may be leaving
    const bool leaves = frame.status.code() == StatusCode::kCancelled;
    return EndGeneration(frame.status, leaves ? from : kNoRank);
  }
  if (frame.status.code() == StatusCode::kDeadlineExceeded) {  // its goodbye is overdue there
    if (peers_.departed(suspect) || suspect == rank_) return;
    return peers_.Suspect(suspect, {frame.status.message(), time_.now + kSequencerGrace, false});
  }
  if (peers_.departed(suspect) || kept_.HasGoodbye(suspect) ||
      (suspect == rank_ && ending_.leaving())) {
    return EndGeneration(texts_.Left(suspect), suspect);
  }
  peers_.Suspect(suspect, {texts_.Name(from) + " reports: " + frame.status.message(),
                           time_.now + kSequencerGrace, true});
}

void Engine::OnPeerLost(Rank peer, const std::string& reason) {
  if (peers_.gone(peer)) return;
  if (peers_.IsControlPeer(peer)) {
    // All frames of this connection came before this event: a goodbye would have been among them.
    peers_.MarkGone(peer);
    if (!peers_.departed(peer)) return EndOnPeerLoss(peer, reason);
    if (peer != 0) return;
    // Without rank 0 there are no more plans. Those that run need no sequencer, but nobody could
    // tell this rank if one broke elsewhere: hence the drain limit in Close.
    DrainNegotiator();
    Close(texts_.Left(ending_.leaving() ? rank_ : 0));
  } else if (!peers_.departed(peer) && ending_.closed().ok()) {
    peers_.Suspect(peer, {reason, time_.now + kGoodbyeGrace, false});
  }
}

// The time for an explanation is over.
void Engine::OnSuspicion(Rank suspect, const Peers::Suspicion& suspicion) {
  if (suspect == kNoRank) {
    if (peers_.first_departed() != kNoRank) return EndOnLeave(peers_.first_departed(), "");
    EndOnError(Unavailable(suspicion.reason + ". A rank of this collective may be gone, but in " +
                           std::to_string(kUnknownGrace / kSecond) +
                           " s no rank was found to be. See the logs of all ranks; " + kWhatToDo));
  } else if (!suspicion.hard) {
    // Nothing is broken here: rank 0, which may know of a goodbye, decides.
    if (!ending_.closed().ok()) return;
    if (rank_ == 0) return EndOnPeerLoss(suspect, suspicion.reason);
    ReportFault(suspect, DeadlineExceeded(suspicion.reason));
  } else if (peers_.departed(0)) {
    EndOnLeave(suspect, "");  // after rank 0's goodbye the others are leaving too
  } else {
    EndOnPeerLoss(suspect, suspicion.reason);
  }
}

void Engine::OnShutdown(const std::string& exception) {
  if (!ending_.Leave(time_.now + (rank_ == 0 ? kSequencerStays : kDrainLimit))) return;
  if (negotiator_ != nullptr) negotiator_->StopLock({UnlockCause::kShutdown, ""}, time_.now);
  DrainNegotiator();
  const Departure own{rank_, Shortened(exception, kMaxDepartureError)};
  const Rank first = peers_.first_departed();  // which others may have to name: see PeerTexts
  for (Rank peer : peers_.control_peers()) {
    std::vector<Departure> departures;
    if (rank_ == 0 && first != kNoRank && !peers_.departed(peer)) {
      departures.push_back({first, peers_.departure_error(first)});
    }
    departures.push_back(own);
    SendGoodbye(peer, std::move(departures));
  }
  if (negotiator_ == nullptr) return;
  if (peers_.control_peers().empty()) return Close(texts_.Left(rank_));
  if (rank_ != 0) return;  // until rank 0 answers
  ending_.Close(texts_.Left(rank_), time_.now, time_.progress);
  plans_.EndCalls(negotiator_->Leave(texts_.Ended(rank_, own.error), time_.now), ending_.closed());
}

void Engine::OnDrainLimit() {
  if (!ending_.DrainIsOver(time_.now, time_.progress)) return;  // the plan ends by itself
  const Rank left = ending_.leaving() ? rank_ : 0;
  const Status why = texts_.Left(left, plans_.first().what);
  if (ending_.leaving()) ReportFault(rank_, why);
  EndGeneration(why, left);
}

void Engine::OnBrokenConnection(const Completion& completion, const std::string& what) {
  const Rank suspect = completion.suspect;
  // Once rank 0 has left, every rank leaves, and nobody can forward the goodbye of the suspect.
  if (peers_.departed(suspect) || peers_.gone(0)) return EndOnLeave(suspect, what);
  const Status evidence =
      Unavailable("the data stream of " + what + " broke: " + completion.status.message());
  peers_.Suspect(suspect, {evidence.message(),
                           time_.now + (rank_ == 0 ? kSequencerGrace : kFaultGrace), true});
  ReportFault(suspect, evidence);
  // Bytes of this plan may be left in the connections: the plans behind it must not run.
  Abort(texts_.Lost(suspect, evidence.message()));
}

// Not a fault of this rank: a peer that dies in the middle of a collective between devices breaks
// it on all members, often before its connections close. Whoever notices that ends the generation.
void Engine::OnBrokenGroup(const Status& failure, const std::string& what) {
  if (peers_.gone(0)) return EndOnLeave(0, what);  // nobody can say who is gone
  const std::string text = texts_.Name(rank_) + " could not run " + what + ": " + failure.message();
  peers_.Suspect(kNoRank, {text, time_.now + kUnknownGrace, true});
  // The plans behind it on the device must not run.
  Abort(Unavailable(text));
}

void Engine::EndOnPeerLoss(Rank peer, const std::string& reason) {
  const Status why = texts_.Lost(peer, reason);
  ReportFault(peer, why);
  EndGeneration(why, peer);
}

void Engine::EndOnLeave(Rank peer, const std::string& what) {
  const Status why = texts_.Left(peer, what);
  ReportFault(peer, why);
  EndGeneration(why, peer);
}

void Engine::EndOnError(const Status& status) {
  ReportFault(rank_, status);
  EndGeneration(status, kNoRank);
}

void Engine::ReportFault(Rank rank, const Status& status) {
  if (rank_ == 0) return;  // rank 0 tells everybody when the generation ends
  if (!ending_.ended().ok()) return;
  Frame fault;
  fault.type = FrameType::kFault;
  fault.rank = rank;
  fault.status = status;
  frames_.Send(0, fault);
}

void Engine::EndGeneration(const Status& why, Rank culprit) {
  const bool other = peers_.InRange(culprit) && culprit != rank_;
  if (!ending_.End(why, other ? culprit : kNoRank)) return;
  if (rank_ == 0) {
    Frame abort;
    abort.type = FrameType::kAbort;
    abort.rank = culprit;
    abort.status = why;
    frames_.Broadcast(abort);
  }
  Abort(why);
  plans_.EndHeld(why);
  Close(why);
}

void Engine::Abort(const Status& why) {
  if (ending_.Abort()) effects_.abort = why;
}

void Engine::Close(const Status& why) {
  ending_.Close(why, time_.now, time_.progress);
  if (negotiator_ == nullptr) return;
  TakeRecalled();
  plans_.EndParked(why);
  plans_.EndCalls(negotiator_->TakeCalls(), why);
  negotiator_.reset();
}

void Engine::SendGoodbye(Rank to, std::vector<Departure> departures) {
  Frame goodbye;
  goodbye.type = FrameType::kGoodbye;
  goodbye.departures = std::move(departures);
  frames_.Send(to, goodbye);
}

}  // namespace tfring
