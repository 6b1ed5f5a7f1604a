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

// What a rank needs to connect to other ranks after init.
struct PeerAddresses {
  Rank self = kNoRank;
  UniqueFd listener;                                   // higher ranks connect to it
  std::vector<std::pair<std::string, int>> endpoints;  // address and port of each rank
  std::string key;                                     // secret of all ranks of the job
  Duration limit = 60 * kSecond;                       // for another rank's kernel to answer
  // Limits for strangers: processes that connected and have not proved their rank. There may be
  // this many besides one for each rank, and each may take this long.
  size_t strangers = 256;
  Duration hello_limit = 10 * kSecond;
};

// Opens data connections that two ranks need and do not have yet: the higher rank connects, the
// lower one accepts. Both prove that they know the key, with a MAC (BLAKE2b) of all earlier
// messages:
//
//     lower -> higher   magic, nonce
//     higher -> lower   both ranks, nonce, MAC
//     lower -> higher   MAC
//
// The higher rank proves first, so a stranger that connects gets no MAC to test guesses on. A lower
// rank accepts only when it needs a connection itself, so a higher rank may wait for long. It
// retries if a connection fails. Nothing blocks except the lookup of a host name. Used by one
// thread.
class PeerConnector {
 public:
  static Result<std::unique_ptr<PeerConnector>> Create(PeerAddresses addresses);

  bool Reaches(Rank peer) const;

  // Begins to connect to `peer` if this rank has to and has not yet, and advances all open
  // handshakes. Unavailable: `peer` could not be reached within the limit; the time in which a
  // connection waited to be accepted does not count. Internal: this process may open no more
  // descriptors, and there is no stranger to drop.
  Status Advance(Rank peer);
  // Returns the connections that became ready since the last call.
  std::vector<std::pair<Rank, UniqueFd>> TakeReady() { return std::exchange(ready_, {}); }

  // Call Advance when this descriptor is readable, or at the time of the next function.
  int fd() const { return epoll_.get(); }
  TimePoint NextAttempt() const;
  // As DataTransport::PathTrouble: why `peer`, a lower rank, cannot be reached now.
  std::string Trouble(Rank peer) const;

 private:
  enum class Stage {
    kConnecting,  // to a lower rank: its kernel has not answered
    kChallenge,   // to a lower rank: it has not accepted
    kProof,       // to a lower rank: it has not proved its rank
    kHello,       // from a stranger: it has not proved its rank
  };
  struct Handshake {
    UniqueFd socket;
    Stage stage = Stage::kHello;
    Rank peer = kNoRank;   // kNoRank: not known yet
    std::string said;      // all messages except the proofs, in order
    std::string received;  // bytes of the next message
    TimePoint since = 0;   // when this rank accepted, or the peer's kernel answered
  };
  // The attempts to connect to a lower rank.
  struct Attempt {
    TimePoint began = 0;  // plus the time in which its connections stood
    int socket = -1;      // of the open handshake; -1: none
    TimePoint next = 0;   // when to retry if no handshake is open
    size_t count = 0;
    std::string failure;  // of the last handshake
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
