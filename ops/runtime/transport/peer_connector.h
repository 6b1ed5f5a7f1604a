#ifndef TFRING_OPS_RUNTIME_TRANSPORT_PEER_CONNECTOR_H_
#define TFRING_OPS_RUNTIME_TRANSPORT_PEER_CONNECTOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/base/status.h"
#include "ops/runtime/base/types.h"
#include "ops/runtime/transport/unique_fd.h"

namespace tfring {

// What a rank needs to connect to others after init.
struct PeerAddresses {
  Rank self = kNoRank;
  UniqueFd listener;                                   // higher ranks connect to it
  std::vector<std::pair<std::string, int>> endpoints;  // address and port of each rank's
  std::string key;                                     // all ranks have it, and nobody else
  Duration limit = 60 * kSecond;                       // for another rank's kernel to answer
  // Of those that have connected here and not said who they are: how many there may be besides one
  // for each rank, and how long each may take.
  size_t strangers = 256;
  Duration hello_limit = 10 * kSecond;
};

// Opens data connections that two ranks need and do not have yet: the higher rank connects, the
// lower one accepts. Both prove to know the key, with a MAC (BLAKE2b) of all that was said before:
//
//     lower -> higher   magic, nonce
//     higher -> lower   both ranks, nonce, MAC
//     lower -> higher   MAC
//
// The higher rank proves first: who asks a listener learns nothing that guesses could be tried on.
// A lower rank accepts when it needs a connection itself, so a higher one may wait for long; it
// tries again if a connection fails. Nothing blocks, but for looking up a name that is no address.
// Used by one thread.
class PeerConnector {
 public:
  static Result<std::unique_ptr<PeerConnector>> Create(PeerAddresses addresses);

  bool Reaches(Rank peer) const;

  // Begins to connect to `peer`, if that is for this rank to do and not done yet, and goes on with
  // all connections that are under way. Unavailable: `peer` could not be reached within the limit,
  // in which the time that a connection waited to be accepted does not count. Internal: this
  // process may open no more descriptors, and no stranger has one.
  Status Advance(Rank peer);
  // The connections that have got ready since the last call.
  std::vector<std::pair<Rank, UniqueFd>> TakeReady() { return std::exchange(ready_, {}); }

  // When to call Advance next: when this is readable, or at that time.
  int fd() const { return epoll_.get(); }
  TimePoint NextAttempt() const;
  // As DataTransport::PathTrouble: why `peer`, a lower rank, cannot be reached now.
  std::string Trouble(Rank peer) const;

 private:
  enum class Stage {
    kConnecting,  // to a lower rank: no answer of its kernel yet
    kChallenge,   // it has not accepted yet
    kProof,       // it has not proved who it is
    kHello,       // of one that has connected here: it has not said and proved who it is
  };
  struct Handshake {
    UniqueFd socket;
    Stage stage = Stage::kHello;
    Rank peer = kNoRank;   // kNoRank: it has not said yet
    std::string said;      // all messages but the proofs, as they were said
    std::string received;  // of the next message
    TimePoint since = 0;   // when it was accepted, or the peer's kernel answered
  };
  // To connect to a lower rank.
  struct Attempt {
    TimePoint began = 0;  // later by the time that its connections have stood
    int socket = -1;      // of its handshake, if one is under way
    TimePoint next = 0;   // when to try again, if none is
    size_t count = 0;
    std::string failure;  // of the last one
  };

  PeerConnector(PeerAddresses addresses, UniqueFd epoll);
  Status Begin(Rank peer, Attempt* attempt);
  Status CheckLimit(Rank peer, const Attempt& attempt) const;
  Status Accept();
  void Add(Handshake handshake);
  void Continue(int socket);
  Status Receive(Handshake* handshake, bool* ready);
  Status AnswerChallenge(Handshake* handshake) const;
  Status AnswerHello(Handshake* handshake, bool* ready) const;
  void Drop(int socket, const std::string& why);
  std::vector<int> Strangers() const;
  bool DropStranger();
  void DropSlowStrangers();
  std::string Proof(const char* side, const std::string& said) const;
  std::string Place(Rank peer) const;
  bool Answered(const Attempt& attempt) const;

  const PeerAddresses addresses_;
  const UniqueFd epoll_;
  std::map<int, Handshake> handshakes_;  // by descriptor
  std::map<Rank, Attempt> attempts_;
  std::vector<std::pair<Rank, UniqueFd>> ready_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_TRANSPORT_PEER_CONNECTOR_H_
